//! Lesson 6: work that is larger than memory.
//!
//! A plan says how large a chunk may be, by what is free when it is made. Then somebody
//! else takes memory. The runner halves the chunk that failed, repeats nothing that was
//! done, and grows back when there is room again.
#![expect(clippy::print_stdout, reason = "a lesson shows what happens")]

use std::error::Error;

use plimsoll::backend::{BackendKind, open};
use plimsoll::{
    AdaptiveRunner, Bytes, Memory, MemoryConfig, Pool, Request, Stream, auto_chunk,
    get_free_memory, will_oom,
};

fn main() -> Result<(), Box<dyn Error>> {
    let config = MemoryConfig::new().with_limit(Bytes::gib(2));
    let pool = Pool::new(open(BackendKind::Sim)?, config)?;

    // 500 clouds, each with its points and a grid of 128 x 128 x 128 floats.
    let (clouds, cloud) = (500, Bytes(100_000 * 3 * 4 + 128 * 128 * 128 * 4));
    let free = get_free_memory(&pool)?;
    assert!(will_oom(cloud * clouds, free), "all at once would not fit");
    let plan = auto_chunk(clouds, cloud, free)?;
    println!("the plan: {plan}");

    // After the plan was made, a neighbour takes most of the memory, and returns it later.
    let mut neighbour = Some(pool.allocate(Request::new(Bytes::mib(1500)))?);
    let report = AdaptiveRunner::from_plan(&plan).run(clouds, |items| {
        if items.start > 200
            && let Some(block) = neighbour.take()
        {
            pool.release(block, Stream::DEFAULT)?;
        }
        let count = items.end - items.start;
        // Refused for want of memory, this error makes the runner halve; any other ends it.
        let block = pool.allocate(Request::new(cloud * count))?;
        // ... voxelize the clouds of `items` here ...
        pool.release(block, Stream::DEFAULT)?;
        Ok::<_, plimsoll::Error>(count)
    })?;

    println!(
        "{} clouds in {} chunks of {:?} to {:?}: halved {} times, grown {} times",
        report.items,
        report.chunks,
        report.smallest_chunk,
        report.largest_chunk,
        report.halvings,
        report.growths,
    );
    assert_eq!(report.results.iter().sum::<u64>(), clouds);
    assert!(report.halvings > 0 && report.growths > 0);
    Ok(())
}
