import torch, pickle, sys
torch.cuda.memory._record_memory_history(max_entries=200000)
m=torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Conv2d(3 if i==0 else 64,64,3,padding=1),torch.nn.BatchNorm2d(64),torch.nn.ReLU()) for i in range(6)]).cuda()
o=torch.optim.SGD(m.parameters(),lr=0.01)
s=torch.cuda.Stream()
for k in range(12):
    x=torch.randn(4+k%3,3,64+16*(k%4),64,device='cuda'); o.zero_grad(); m(x).square().mean().backward(); o.step()
    with torch.cuda.stream(s):
        y=torch.randn(1000*(k+1),device='cuda'); z=(y*2).sum()
torch.cuda.synchronize()
torch.cuda.memory._dump_snapshot(sys.argv[1])
print(torch.__version__)
