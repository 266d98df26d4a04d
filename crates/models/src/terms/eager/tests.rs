use super::*;
use crate::families::attention::ScoreKind;
use crate::safetensors::HfConfig;
use crate::terms::training::{Optimizer, TrainingShard};

const MIB: f64 = 1_048_576.0;
/// What the device holds beyond reserved bytes, while running and while training.
const CONTEXT: f64 = 695.0;

/// A decoder of a configuration as JSON.
fn with<T>(
    config: &str,
    (job, batch, tokens): (EagerJob, u64, u64),
    then: impl Fn(&EagerDecoder<'_>) -> T,
) -> T {
    let config = HfConfig::parse(config).expect("a configuration");
    let shape = config.shape.expect("a decoder");
    let caches = shape.caches.iter().flatten().map(|cache| EagerCache::new(cache, batch)).collect();
    then(&EagerDecoder {
        shape: &shape,
        style: config.style,
        job,
        caches,
        batch,
        tokens,
        room: None,
    })
}

fn off(got: u64, more: f64, measured: f64) -> f64 {
    100.0 * ((got as f64 / MIB + more) / measured - 1.0)
}

const GEMMA2: &str = r#"{"model_type":"gemma2","hidden_size":2304,"num_hidden_layers":26,
    "num_attention_heads":8,"num_key_value_heads":4,"head_dim":256,"intermediate_size":9216,
    "vocab_size":256000,"sliding_window":4096}"#;
const GEMMA3: &str = r#"{"model_type":"gemma3_text","hidden_size":1152,"num_hidden_layers":26,
    "num_attention_heads":4,"num_key_value_heads":1,"head_dim":256,"intermediate_size":6912,
    "vocab_size":262144,"sliding_window":512}"#;
const GRANITE: &str = r#"{"model_type":"granite","hidden_size":2048,"num_hidden_layers":40,
    "num_attention_heads":32,"num_key_value_heads":8,"intermediate_size":8192,
    "vocab_size":49155,"tie_word_embeddings":true}"#;
const OLMO2: &str = r#"{"model_type":"olmo2","hidden_size":2048,"num_hidden_layers":16,
    "num_attention_heads":16,"num_key_value_heads":16,"intermediate_size":8192,
    "vocab_size":100352}"#;
const MAMBA: &str = r#"{"model_type":"mamba","hidden_size":2048,"num_hidden_layers":48,
    "state_size":16,"vocab_size":50280}"#;
const QWEN: &str = r#"{"model_type":"qwen2","hidden_size":1536,"num_hidden_layers":28,
    "num_attention_heads":12,"num_key_value_heads":2,"intermediate_size":8960,
    "vocab_size":151936,"tie_word_embeddings":true}"#;
const LLAMA: &str = r#"{"model_type":"llama","hidden_size":2048,"num_hidden_layers":16,
    "num_attention_heads":32,"num_key_value_heads":8,"head_dim":64,"intermediate_size":8192,
    "vocab_size":128256,"tie_word_embeddings":true}"#;
const GPT2: &str = r#"{"model_type":"gpt2","n_embd":1024,"n_layer":24,"n_head":16,
    "n_positions":1024,"vocab_size":50257}"#;

/// What an H200 held while models ran, in MiB: each shows a cause.
#[test]
fn models_that_ran_take_what_was_measured() {
    // Here the weights are one tensor, which moves what the allocator holds by a percent or two.
    for (config, weights, width, tokens, measured) in [
        // Norms on both sides; a mask for windows; norms behind; a recurrent state; keys that
        // heads share in 32 bits, for which no kernel is fused.
        (GEMMA2, 2_614_341_888, 2, 4096, 6761.0),
        (GEMMA3, 999_885_952, 2, 8192, 3623.0),
        (GRANITE, 2_533_531_648, 2, 4096, 6223.0),
        (OLMO2, 1_484_916_736, 2, 4096, 4523.0),
        (MAMBA, 1_372_178_432, 2, 2048, 5117.0),
        (QWEN, 1_543_714_304, 4, 16_384, 39_627.0),
    ] {
        let job = EagerJob::inference(width);
        let held = with(config, (job, 1, tokens), |decoder| decoder.memory(&[weights * width]));
        let off = off(held.reserved, CONTEXT, measured);
        assert!(off.abs() < 5.0, "{off:+.1} % of {measured}: {config}");
    }
}

const GPT_OSS: &str = r#"{"model_type":"gpt_oss","hidden_size":2880,"num_hidden_layers":4,
    "num_attention_heads":64,"num_key_value_heads":8,"head_dim":64,"intermediate_size":2880,
    "num_local_experts":32,"num_experts_per_tok":4,"vocab_size":201088,"sliding_window":128,
    "layer_types":["sliding_attention","full_attention","sliding_attention","full_attention"]}"#;

/// What models that store scores hold by their own programs, in MiB (`--exact`, Transformers 5.23).
#[test]
fn models_that_store_scores_take_what_their_own_programs_do() {
    let plain = OtherAttention { scores: ScoreKind::Plain, reason: "" };
    let job = EagerJob { bf16: true, ..EagerJob::inference(2) };
    let gemma2_9b = GEMMA2.replace("2304", "3584").replace("26", "42").replace("9216", "14336");
    let gemma2_9b = gemma2_9b.replace("heads\":8", "heads\":16").replace("heads\":4", "heads\":8");
    for (config, weights, batch, tokens, measured) in [
        (GPT_OSS, 8489.6, 1, 4096, 17_026.0),
        (GPT_OSS, 8489.6, 1, 8192, 41_994.0),
        (GPT_OSS, 8489.6, 4, 2048, 17_240.0),
        (&*gemma2_9b, 17_627.2, 1, 4096, 23_106.0),
        (&*gemma2_9b, 17_627.2, 1, 8192, 34_844.0),
    ] {
        let of = |decoder: &EagerDecoder<'_>| {
            let decoder = match decoder.style.attention {
                AttentionKind::Sdpa => decoder.with(plain),
                AttentionKind::Operators(_) => decoder.clone(),
            };
            decoder.memory(&[(weights * MIB) as u64])
        };
        let off = off(with(config, (job, batch, tokens), of).reserved, 0.0, measured);
        assert!(off.abs() < 2.0, "{off:+.1} % of {measured}: {config}");
    }
}

/// The most that was allocated on an H200 in three steps, in MiB.
#[test]
fn training_allocates_what_was_measured() {
    let training = |width, amp, checkpointing| EagerJob {
        weight_width: width,
        bf16: width == 2,
        amp,
        training: true,
        adapters: None,
        checkpointing,
    };
    let (fp32, bf16, amp) =
        (training(4, false, false), training(2, false, false), training(4, true, false));
    let again = training(2, false, true);
    let rows = [
        (fp32, 4, 1024, Optimizer::AdamW, [17_471.0, 41_822.0]),
        (bf16, 4, 1024, Optimizer::AdamW, [10_049.0, 20_008.0]),
        (amp, 4, 1024, Optimizer::AdamWFused, [15_449.0, 30_732.0]),
        (again, 8, 1024, Optimizer::AdamW, [7232.0, 19_803.0]),
        (bf16, 2, 512, Optimizer::Sgd, [2730.0, 5786.0]),
    ];
    for (job, batch, tokens, optimizer, measured) in rows {
        let how = EagerTraining { optimizer, accumulation: 1, gpus: 1, shard: TrainingShard::Ddp };
        for ((config, elements), measured) in
            [(GPT2, 354_823_168), (LLAMA, 1_235_814_400)].into_iter().zip(measured)
        {
            let memory =
                with(config, (job, batch, tokens), |decoder| decoder.training(&[elements], &how));
            let off = off(memory.held.allocated, 0.0, measured);
            assert!(off.abs() < 0.5, "{off:+.2} % of {measured}: {job:?}");
            assert!(memory.held.reserved >= memory.held.allocated);
            assert_eq!(memory.gradients, elements * job.weight_width);
        }
    }
}

/// Frozen weights have no gradients and no states; packed ones take half a byte.
#[test]
fn adapters_alone_are_trained() {
    let how = EagerTraining {
        optimizer: Optimizer::AdamW,
        accumulation: 1,
        gpus: 1,
        shard: TrainingShard::Ddp,
    };
    let of = |base, width| {
        let adapters = Some(EagerAdapters { rank: 16, base });
        let job = EagerJob {
            weight_width: width,
            bf16: width == 2,
            amp: false,
            training: true,
            adapters,
            checkpointing: false,
        };
        with(LLAMA, (job, 2, 512), |decoder| decoder.training(&[1_235_814_400], &how))
    };
    let plain = of(EagerBase::Plain, 2);
    // Of every layer q, k, v, o and three of the MLP: 16 numbers for each input and output.
    let sides = 2 * 2048 + 2 * (2048 + 512) + 2 * 2048 + 3 * (2048 + 8192);
    assert_eq!(plain.adapters, 16 * 16 * sides * 4);
    assert_eq!((plain.gradients, plain.states), (plain.adapters, 2 * plain.adapters));
    let packed = of(EagerBase::Nf4, 4);
    let inner: u64 = 16 * (2 * 2048 * 2048 + 2 * 2048 * 512 + 3 * 2048 * 8192);
    let rest = (1_235_814_400 - inner) * 4;
    let base = packed.weights - packed.adapters - rest;
    assert!(base > inner / 2 && base < inner / 2 + inner / 50, "{base}");
}

/// Each of several GPUs holds its share; ZeRO-1 splits between weights and never in one.
#[test]
fn shards_split_what_they_say() {
    let job = EagerJob { training: true, ..EagerJob::inference(2) };
    let with_weights = |gpus, shard, weights: &[u64]| {
        let how = EagerTraining { optimizer: Optimizer::AdamW, accumulation: 1, gpus, shard };
        with(LLAMA, (job, 1, 512), |decoder| decoder.training(weights, &how))
    };
    let of = |gpus, shard| with_weights(gpus, shard, &[154_476_800; 8]);
    let uneven = with_weights(8, TrainingShard::Zero1, &[8 << 20, 1 << 20, 1 << 20]);
    assert_eq!(uneven.states, 2 * 2 * (8 << 20), "the largest weight's states are not split");
    let one = of(1, TrainingShard::Ddp);
    let (ddp, zero, fsdp) =
        (of(8, TrainingShard::Ddp), of(8, TrainingShard::Zero1), of(8, TrainingShard::Fsdp2));
    assert!(ddp.held.allocated >= one.held.allocated + one.gradients, "buckets");
    assert_eq!((zero.states, zero.weights), (one.states / 8, one.weights));
    assert_eq!((fsdp.weights, fsdp.states), (one.weights / 8, one.states / 8));
    assert!(fsdp.gradients <= one.gradients / 8 + 1);
}

/// A prompt's windows are views of all of it; later they hold the window alone.
#[test]
fn a_window_is_held_whole_until_the_next_token() {
    let cache = EagerCache { widths: [8, 8], window: Some(100), state: 0 };
    assert_eq!(cache.held(EagerPass { count: 500, tokens: 500 }), 500);
    assert_eq!(cache.held(EagerPass { count: 1, tokens: 501 }), 100);
    assert_eq!(cache.bytes(2, 500, 2), 2 * 100 * 16 * 2);
}

/// The same model in 16 bits stores no scores, in 32 bits it does, and its heads' own keys do not.
#[test]
fn scores_are_stored_where_no_kernel_is_fused() {
    let of = |config: &str, width| {
        with(config, (EagerJob::inference(width), 1, 8192), |decoder| decoder.memory(&[]).live)
    };
    let square = 12 * 8184 * 8184;
    assert!(of(QWEN, 2) < square);
    assert!(of(QWEN, 4) > 9 * square);
    let own = QWEN.replace("\"num_key_value_heads\":2", "\"num_key_value_heads\":12");
    assert!(of(&own, 4) < 4 * square);
    let broadcast = r#"{"model_type":"falcon","hidden_size":1536,"num_hidden_layers":2,
        "num_attention_heads":12,"vocab_size":1000,"multi_query":true}"#;
    assert!(of(broadcast, 2) > 9 * square, "one head of keys is handed over as it is");
}
