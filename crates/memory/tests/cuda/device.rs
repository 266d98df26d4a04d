//! What a device has: kinds of memory, contexts and streams of the caller's, several
//! devices, and physical memory that is shared.

use std::os::fd::AsFd;
use std::sync::Arc;

use plimsoll_memory::backend::cuda::{Cuda, CudaMemory, CudaOptions, facts};
use plimsoll_memory::{
    Address, Bytes, Device, Error, Mapping, Memory, MemoryConfig, Pool, Request, Stream,
};

use crate::front::fronts;

#[test]
fn a_device_tells_what_it_is() {
    for front in fronts("facts", &[]) {
        let told = facts(0, Some(&front.library)).unwrap();
        println!("{told:?}");
        let device = Cuda::open_with(&front.options()).unwrap();
        assert_eq!(device.facts(), told);
        assert_eq!(Some(device.info().total), told.total);
        assert_eq!(device.info().is_unified, told.integrated);
        assert!(told.compute_capability.is_some_and(|(major, _)| major >= 3));
        assert!(told.bus_id.is_some_and(|id| id.matches(':').count() == 2));
        assert!(device.free_memory().unwrap() <= device.info().total);
        assert!(facts(99, Some(&front.library)).is_err());
    }
}

#[test]
fn memory_of_every_kind_holds_its_contents() {
    for front in fronts("kinds", &[]) {
        for memory in [CudaMemory::Device, CudaMemory::Pinned, CudaMemory::Managed] {
            let options = front.options().total(Bytes::mib(32)).memory(memory);
            let device = Cuda::open_with(&options).unwrap();
            assert_eq!(device.capacity(), Bytes::mib(32));
            assert_eq!(device.mapping().is_some(), memory == CudaMemory::Device, "{memory:?}");
            let stream = device.new_stream().unwrap();
            let block = device.allocate(Request::new(Bytes::mib(3)).on(stream)).unwrap();
            let bytes: Vec<u8> = (0..3u32 << 20).map(|i| (i % 251) as u8).collect();
            device.write_on(stream, block.address(), &bytes).unwrap();
            let copy = device.allocate(Request::new(Bytes::mib(3)).on(stream)).unwrap();
            device.fill_on(stream, copy.address(), 9, Bytes::mib(3)).unwrap();
            device.copy_on(stream, copy.address(), block.address(), Bytes::mib(2)).unwrap();
            let mut read = vec![0; 3 << 20];
            device.read_on(stream, copy.address(), &mut read).unwrap();
            assert!(read[..2 << 20] == bytes[..2 << 20] && read[2 << 20..].iter().all(|b| *b == 9));
            assert!(device.allocate(Request::new(Bytes::mib(30))).unwrap_err().is_full_now());
            device.release(copy, stream).unwrap();
            device.release(block, stream).unwrap();
            assert_eq!(device.stats().total_allocated_bytes, Bytes::ZERO);
        }
    }
}

/// Other tests of this process have pools too, so that the peaks are at least ours.
#[test]
fn a_pool_on_a_gpu_counts_among_the_peaks_of_the_process() {
    for front in fronts("peaks", &[]) {
        let config = MemoryConfig::new().with_min_free_bytes(0);
        let pool = Pool::new(front.open(), config).unwrap();
        let block = pool.allocate(Request::new(Bytes::mib(100))).unwrap();
        pool.release(block, Stream::DEFAULT).unwrap();
        drop(pool);
        let peaks = plimsoll_memory::get_gpu_peaks().unwrap();
        assert!(peaks.allocated >= Bytes::mib(100), "{peaks:?}");
        assert!(peaks.reserved >= peaks.allocated, "{peaks:?}");
    }
}

#[test]
fn numbers_that_are_none_of_ours_never_reach_the_driver() {
    for front in fronts("numbers", &[]) {
        let device = front.open();
        let block = device.allocate(Request::new(1000u64)).unwrap();
        let copies = || front.calls("cuMemcpyHtoD_v2") + front.calls("cuMemcpyHtoDAsync_v2");
        let before = copies();
        let own = [0u8; 16];
        let beside = Address { buffer: own.as_ptr() as u64, offset: 0 };
        for (at, length) in [
            (beside, 16),
            (block.address().plus(1020), 16),
            (Address { buffer: u64::MAX, offset: 0 }, 2),
        ] {
            assert!(device.write(at, &own[..length]).is_err());
            assert!(device.write_on(Stream::DEFAULT, at, &own[..length]).is_err());
        }
        assert_eq!(copies(), before);
        assert!(device.write(block.address(), &own).is_ok());
        let event = device.record(Stream::DEFAULT).unwrap();
        device.forget(event).unwrap();
        assert!(device.is_done(event).is_err() && device.record(Stream(77)).is_err());
        assert!(device.unmap(1 << 40, Bytes::mib(2)).is_err());
        assert!(device.destroy(plimsoll_memory::Handle(12345), Bytes::mib(2)).is_err());
        assert!(device.create(Bytes(1000)).is_err());
        device.release(block, Stream::DEFAULT).unwrap();
        assert!(matches!(device.release(block, Stream::DEFAULT), Err(Error::AlreadyFreed { .. })));
    }
}

#[test]
fn a_context_and_a_stream_of_the_callers_are_used() {
    for front in fronts("callers", &[]) {
        let owner = front.open();
        let retained = front.calls("cuDevicePrimaryCtxRetain");
        // SAFETY: the context and the stream are of the device above, which outlives it.
        let device =
            unsafe { Cuda::open_with(&front.options().context(owner.raw_context())).unwrap() };
        assert_eq!(front.calls("cuDevicePrimaryCtxRetain"), retained, "no context of its own");
        let theirs = owner.new_stream().unwrap();
        let raw = owner.raw_stream(theirs).unwrap();
        // SAFETY: as above.
        let stream = unsafe { device.adopt_stream(raw) }.unwrap();
        assert_eq!(device.raw_stream(stream).unwrap(), raw);
        let block = device.allocate(Request::new(Bytes::mib(1)).on(stream)).unwrap();
        device.write_on(stream, block.address(), &[3; 64]).unwrap();
        let event = device.record(stream).unwrap();
        device.synchronize(event).unwrap();
        assert!(device.is_done(event).unwrap());
        device.release(block, stream).unwrap();
        drop(device);
        owner.synchronize_stream(theirs).unwrap();
    }
}

#[test]
fn each_device_counts_by_itself() {
    for front in fronts("several", &[]) {
        let devices: Vec<Cuda> = (0..)
            .map_while(|number| {
                Cuda::open_with(&CudaOptions::new(number).library(&front.library)).ok()
            })
            .collect();
        assert!(devices.len() >= if front.is_real { 1 } else { 2 });
        let blocks: Vec<_> =
            devices.iter().map(|d| d.allocate(Request::new(Bytes::mib(8))).unwrap()).collect();
        for (number, (device, block)) in devices.iter().zip(&blocks).enumerate() {
            assert_eq!(device.info().number as usize, number);
            assert_eq!(device.stats().total_allocated_bytes, Bytes::mib(8));
            device.write(block.address(), &[number as u8; 8]).unwrap();
        }
        for (number, (device, block)) in devices.iter().zip(&blocks).enumerate() {
            let mut byte = [9];
            device.read(block.address(), &mut byte).unwrap();
            assert_eq!(byte, [number as u8]);
            assert!(number == 0 || devices[0].release(*block, Stream::DEFAULT).is_err());
            device.release(*block, Stream::DEFAULT).unwrap();
        }
    }
}

#[test]
fn physical_memory_is_shared_when_asked_for() {
    for front in fronts("shared", &[]) {
        let plain = front.open();
        let handle = plain.create(Bytes::mib(2)).unwrap();
        assert!(matches!(plain.export(handle), Err(Error::Unavailable { .. })));
        plain.destroy(handle, Bytes::mib(2)).unwrap();

        let options = front.options().total(Bytes::mib(64)).shareable(true);
        let [giver, taker] = [(); 2].map(|()| Cuda::open_with(&options).unwrap());
        let size = giver.page_size();
        let handle = giver.create(size).unwrap();
        let at = giver.reserve(size).unwrap();
        giver.map(at, handle, size).unwrap();
        giver.write(Address { buffer: at, offset: 100 }, b"through a descriptor").unwrap();
        let descriptor = giver.export(handle).unwrap();
        let imported = taker.import(descriptor.as_fd(), size).unwrap();
        let there = taker.reserve(size).unwrap();
        taker.map(there, imported, size).unwrap();
        let mut bytes = [0; 20];
        taker.read(Address { buffer: there, offset: 100 }, &mut bytes).unwrap();
        assert_eq!(&bytes, b"through a descriptor");
        for (device, at, handle) in [(&giver, at, handle), (&taker, there, imported)] {
            device.unmap(at, size).unwrap();
            device.destroy(handle, size).unwrap();
            device.unreserve(at, size).unwrap();
            assert_eq!(device.stats().total_allocated_bytes, Bytes::ZERO);
        }
    }
}

#[test]
fn a_block_of_a_pool_is_shared_by_the_pages_behind_it() {
    for front in fronts("shared_block", &[]) {
        let options = front.options().total(Bytes::mib(64)).shareable(true);
        let giver = Arc::new(Cuda::open_with(&options).unwrap());
        let taker = Cuda::open_with(&options).unwrap();
        let config = MemoryConfig::new().with_gpu_memory_fraction(1.0).with_min_free_bytes(0);
        let pool = Pool::new(giver.clone() as Arc<dyn Memory>, config).unwrap();
        let before = pool.allocate(Request::new(Bytes::mib(1))).unwrap();
        let block = pool.allocate(Request::new(Bytes::mib(5))).unwrap();
        let bytes: Vec<u8> = (0..5u32 << 20).map(|i| (i % 253) as u8).collect();
        giver.write(block.address(), &bytes).unwrap();

        let pages = giver.pages_behind(block.address(), block.size()).unwrap();
        assert!(pages.len() > 1, "{pages:?}");
        let size = pages.iter().map(|(_, size, _)| *size).sum::<Bytes>();
        let base = taker.reserve(size).unwrap();
        let mut at = base;
        for (_, size, handle) in &pages {
            let descriptor = giver.export(*handle).unwrap();
            let imported = taker.import(descriptor.as_fd(), *size).unwrap();
            taker.map(at, imported, *size).unwrap();
            at += size.0;
        }
        let offset = block.address().pointer() - pages[0].0.pointer();
        let mut read = vec![0; bytes.len()];
        taker.read(Address { buffer: base, offset }, &mut read).unwrap();
        assert!(read == bytes, "another view of the same memory");
        assert!(giver.pages_behind(block.address(), Bytes::gib(1)).is_err());
        drop(taker);
        for block in [before, block] {
            pool.release(block, Stream::DEFAULT).unwrap();
        }
    }
}

#[test]
fn what_is_left_out_goes_back_with_the_device() {
    for front in fronts("left", &[]) {
        let watcher = front.open();
        let free = watcher.free_memory().unwrap();
        let device = Cuda::open_with(&front.options().total(Bytes::mib(64))).unwrap();
        let size = device.page_size();
        let (at, handle) = (device.reserve(size).unwrap(), device.create(size).unwrap());
        device.map(at, handle, size).unwrap();
        device.create(size).unwrap();
        device.allocate(Request::new(Bytes::mib(4))).unwrap();
        drop(device);
        assert!(front.is_real || watcher.free_memory().unwrap() == free);
        for (taken, given) in [
            ("cuMemAlloc_v2", "cuMemFree_v2"),
            ("cuMemCreate", "cuMemRelease"),
            ("cuMemMap", "cuMemUnmap"),
            ("cuMemAddressReserve", "cuMemAddressFree"),
        ] {
            assert_eq!(front.calls(taken), front.calls(given), "{taken}");
        }
    }
}

#[test]
fn a_pool_awaits_fresh_events_before_it_grows() {
    for front in fronts("fresh", &[]) {
        let device = Arc::new(Cuda::open_with(&front.options().total(Bytes::gib(4))).unwrap());
        let (one, two) = (device.new_stream().unwrap(), device.new_stream().unwrap());
        let config = MemoryConfig::new().with_gpu_memory_fraction(1.0).with_min_free_bytes(0);
        let pool = Pool::new(device, config).unwrap();
        let take = |size, stream| pool.allocate(Request::new(Bytes::mib(size)).on(stream)).unwrap();
        let [first, live, last] = [32, 2, 32].map(|size| take(size, one));
        pool.release(first, one).unwrap();
        pool.release(last, one).unwrap();
        let held = pool.stats().total_allocated_bytes;
        // What was freed fits only after it was moved, and no event is over at once.
        front.fail("cuEventQuery", 0, 6, 600);
        let moved = take(48, two);
        assert!(pool.stats().total_allocated_bytes <= held, "{:?}", pool.activity());
        assert!(pool.activity().remapped_handles > 0);
        pool.release(moved, two).unwrap();
        pool.release(live, one).unwrap();
    }
}

#[test]
fn a_driver_that_refuses_aliases_is_named_and_its_memory_moves() {
    for front in fronts("aliases", &[]) {
        let options = front.options().total(Bytes::gib(4));
        let unasked = Cuda::open_with(&options.clone().aliases(false)).unwrap();
        assert!(unasked.why_not_aliased().is_some_and(|why| why.contains("not asked for")));
        assert_eq!(Cuda::open_with(&options).unwrap().why_not_aliased(), None);
        // The first maps a page to see that it can be done, the others the same page twice.
        front.fail("cuMemMap", 2, 1, 801);
        let device = Arc::new(Cuda::open_with(&options).unwrap());
        assert_eq!(device.why_not_mapped(), None);
        let why = device.why_not_aliased().unwrap().to_string();
        assert!(why.contains("cuMemMap") || why.contains("801"), "{why}");
        let config = MemoryConfig::new().with_gpu_memory_fraction(1.0).with_min_free_bytes(0);
        let pool = Pool::new(device, config).unwrap();
        let take = |mib| pool.allocate(Request::new(Bytes::mib(mib))).unwrap();
        let [first, live, last] = [32, 2, 32].map(take);
        for block in [first, last] {
            pool.release(block, Stream::DEFAULT).unwrap();
        }
        let unmapped = front.calls("cuMemUnmap");
        let moved = take(48);
        let activity = pool.activity();
        assert!(activity.remapped_handles > 0 && activity.found_handles == 0, "{activity:?}");
        assert!(u64::from(front.calls("cuMemUnmap") - unmapped) >= activity.remapped_handles);
        for block in [moved, live] {
            pool.release(block, Stream::DEFAULT).unwrap();
        }
    }
}
