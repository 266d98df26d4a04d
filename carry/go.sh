cd carry; chmod +x plimsoll
for p in 5 40; do for t in resnet_train.csv.gz two_streams.csv.gz llama_generate.csv.gz; do echo $t passes $p; ./plimsoll replay $t --threads 12 --latencies off --passes $p 2>&1 | grep -E 'of one thread' | awk '{printf "%s:%s(%s) ",$1,$2,$5} END{print ""}'; done; done
