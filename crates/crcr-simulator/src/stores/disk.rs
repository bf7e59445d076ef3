//! A disk in memory for SQLite. It loses what wasn't synced when its power is cut, and may have written any part of it.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Error, ErrorKind, Result};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng as _, RngCore as _, SeedableRng as _};
use sqlite_vfs::wip::{WalIndex, WalIndexLock};
use sqlite_vfs::{DatabaseHandle, LockKind, OpenAccess, OpenOptions, Vfs};

/// What a disk writes as a whole or not at all.
const SECTOR: usize = 512;
/// The size of a part of the index of a log.
const REGION: usize = 32768;

/// A disk, and the name by which SQLite knows it.
#[derive(Clone)]
pub(crate) struct SimulatedDisk {
    pub(crate) name: String,
    content: Arc<Mutex<DiskContent>>,
}

struct DiskContent {
    files: BTreeMap<String, DiskFile>,
    handles: u64,
    /// How many more changes there are before the power is cut.
    left: Option<u32>,
    /// Until [`SimulatedDisk::power_on`], nothing works.
    is_cut: bool,
    /// Files that were opened before the last power cut work no more.
    generation: u32,
    /// SQLite asks for randomness, and a seed does the same every time.
    random: StdRng,
}

#[derive(Default)]
struct DiskFile {
    /// What a reader gets, synced or not.
    bytes: Vec<u8>,
    /// What is on the disk in any case.
    synced: Vec<u8>,
    /// The changes since, in their order.
    unsynced: Vec<FileChange>,
    was_synced: bool,
    locks: BTreeMap<u64, LockKind>,
    index: BTreeMap<u32, Box<[u8; REGION]>>,
    index_locks: BTreeMap<u8, IndexLock>,
}

enum FileChange {
    Write(usize, Vec<u8>),
    Length(usize),
}

#[derive(Default)]
struct IndexLock {
    shared: BTreeSet<u64>,
    exclusive: Option<u64>,
}

impl FileChange {
    fn apply(&self, file: &mut Vec<u8>) {
        match self {
            Self::Write(offset, bytes) => write(file, *offset, bytes),
            Self::Length(length) => {
                grow(file, *length);
                file.truncate(*length);
            }
        }
    }
}

/// `Vec::resize` would set byte by byte in a build without optimisation.
fn grow(file: &mut Vec<u8>, length: usize) {
    file.extend_from_slice(&vec![0; length.saturating_sub(file.len())]);
}

fn write(file: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    let end = offset + bytes.len();
    grow(file, end);
    file[offset..end].copy_from_slice(bytes);
}

impl DiskFile {
    fn change(&mut self, change: FileChange) {
        change.apply(&mut self.bytes);
        self.unsynced.push(change);
    }

    fn sync(&mut self) {
        for change in self.unsynced.drain(..) {
            change.apply(&mut self.synced);
        }
        self.was_synced = true;
    }

    /// What is found after a power cut. Of each change since the last sync, each sector was written or not.
    fn lose(&mut self, random: &mut StdRng) {
        let kept = [0, 50, 90, 100][random.random_range(0..4)];
        let mut is_kept = || random.random_range(0..100) < kept;
        let mut found = std::mem::take(&mut self.synced);
        for change in self.unsynced.drain(..) {
            match change {
                FileChange::Length(_) if is_kept() => change.apply(&mut found),
                FileChange::Length(_) => {}
                FileChange::Write(offset, bytes) => {
                    let mut from = 0;
                    while from < bytes.len() {
                        let in_sector = SECTOR - (offset + from) % SECTOR;
                        let until = bytes.len().min(from + in_sector);
                        if is_kept() {
                            write(&mut found, offset + from, &bytes[from..until]);
                        }
                        from = until;
                    }
                }
            }
        }
        *self = Self { bytes: found.clone(), synced: found, was_synced: true, ..Self::default() };
    }
}

impl DiskContent {
    fn new(generation: u32, random: StdRng) -> Self {
        let files = BTreeMap::new();
        Self { files, handles: 0, left: None, is_cut: false, generation, random }
    }

    /// Fails after a power cut, and for a process that ran before it.
    fn needs_power(&self, generation: u32) -> Result<()> {
        if self.is_cut || generation != self.generation {
            return Err(Error::other("the power was cut"));
        }
        Ok(())
    }

    /// One more change. During the last one, the power is cut.
    fn count_change(&mut self) -> Result<()> {
        match &mut self.left {
            Some(0) => self.is_cut = true,
            Some(left) => *left -= 1,
            None => {}
        }
        self.needs_power(self.generation)
    }
}

impl SimulatedDisk {
    /// An empty disk. SQLite can't forget one, so a thread uses the same one for all its seeds.
    pub(crate) fn of_this_thread(seed: u64) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        thread_local! {
            static DISK: SimulatedDisk = {
                let name = format!("simulated-disk-{}", COUNT.fetch_add(1, Ordering::Relaxed));
                let content = Arc::new(Mutex::new(DiskContent::new(0, StdRng::seed_from_u64(0))));
                let disk = SimulatedDisk { name, content };
                sqlite_vfs::register(&disk.name, disk.clone(), false).expect("the name is new");
                disk
            };
        }
        let disk = DISK.with(Clone::clone);
        let generation = disk.content.lock().generation + 1;
        *disk.content.lock() = DiskContent::new(generation, StdRng::seed_from_u64(seed));
        disk
    }

    /// The power is cut during a later change, after `changes` others.
    pub(crate) fn cut_after(&self, changes: u32) {
        self.content.lock().left = Some(changes);
    }

    /// The power is cut, if it wasn't yet.
    pub(crate) fn cut(&self) {
        self.content.lock().is_cut = true;
    }

    /// The power is back. What the disk has then depends on `seed`.
    pub(crate) fn power_on(&self, seed: u64) {
        let mut content = self.content.lock();
        let mut random = StdRng::seed_from_u64(seed);
        // Nobody finds a file whose folder wasn't written.
        content.files.retain(|_, file| file.was_synced || random.random_ratio(1, 2));
        content.files.values_mut().for_each(|file| file.lose(&mut random));
        (content.is_cut, content.left) = (false, None);
        content.generation += 1;
    }
}

impl Vfs for SimulatedDisk {
    type Handle = OpenFile;

    fn open(&self, name: &str, options: OpenOptions) -> Result<OpenFile> {
        let mut content = self.content.lock();
        content.needs_power(content.generation)?;
        let is_there = content.files.contains_key(name);
        match options.access {
            OpenAccess::Read | OpenAccess::Write if !is_there => {
                return Err(ErrorKind::NotFound.into());
            }
            OpenAccess::CreateNew if is_there => return Err(ErrorKind::AlreadyExists.into()),
            _ => {}
        }
        if !is_there {
            content.count_change()?;
            content.files.insert(name.to_owned(), DiskFile::default());
        }
        content.handles += 1;
        let (number, generation) = (content.handles, content.generation);
        let (disk, name) = (self.clone(), name.to_owned());
        Ok(OpenFile(FileHandle { disk, name, number, generation }))
    }

    fn delete(&self, name: &str) -> Result<()> {
        let mut content = self.content.lock();
        content.count_change()?;
        content.files.remove(name).map(drop).ok_or_else(|| ErrorKind::NotFound.into())
    }

    fn exists(&self, name: &str) -> Result<bool> {
        let content = self.content.lock();
        content.needs_power(content.generation)?;
        Ok(content.files.contains_key(name))
    }

    fn access(&self, name: &str, _write: bool) -> Result<bool> {
        self.exists(name)
    }

    fn temporary_name(&self) -> String {
        let mut content = self.content.lock();
        content.handles += 1;
        format!("/temporary-{}", content.handles)
    }

    fn random(&self, buffer: &mut [i8]) {
        let mut content = self.content.lock();
        buffer.fill_with(|| content.random.next_u32() as i8);
    }

    fn sleep(&self, duration: Duration) -> Duration {
        std::thread::sleep(duration);
        duration
    }

    fn full_pathname<'a>(&self, name: &'a str) -> Result<Cow<'a, str>> {
        Ok(name.into())
    }
}

/// A file that a connection has open.
pub(crate) struct OpenFile(FileHandle);

/// The index of a log, which is in memory that all connections share. Each connection works on a copy, which is right
/// only as long as one of them is used at a time.
pub(crate) struct OpenIndex(FileHandle);

#[derive(Clone)]
struct FileHandle {
    disk: SimulatedDisk,
    name: String,
    number: u64,
    generation: u32,
}

impl FileHandle {
    fn with<T>(&self, use_file: impl FnOnce(&mut DiskFile) -> Result<T>) -> Result<T> {
        let mut content = self.disk.content.lock();
        content.needs_power(self.generation)?;
        use_file(content.files.get_mut(&self.name).ok_or(ErrorKind::NotFound)?)
    }

    fn change(&self, change: FileChange) -> Result<()> {
        let mut content = self.disk.content.lock();
        content.needs_power(self.generation)?;
        let counted = content.count_change();
        let file = content.files.get_mut(&self.name).ok_or(ErrorKind::NotFound)?;
        // A part of the last one may get to the disk.
        file.change(change);
        counted
    }
}

impl DatabaseHandle for OpenFile {
    type WalIndex = OpenIndex;

    fn size(&self) -> Result<u64> {
        self.0.with(|file| Ok(file.bytes.len() as u64))
    }

    fn read_exact_at(&mut self, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.0.with(|file| {
            let offset = usize::try_from(offset).map_err(Error::other)?;
            let found = file.bytes.get(offset..).unwrap_or_default();
            let count = found.len().min(buffer.len());
            buffer[..count].copy_from_slice(&found[..count]);
            // SQLite wants zeros behind the end.
            buffer[count..].fill(0);
            if count < buffer.len() { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
        })
    }

    fn write_all_at(&mut self, buffer: &[u8], offset: u64) -> Result<()> {
        let offset = usize::try_from(offset).map_err(Error::other)?;
        self.0.change(FileChange::Write(offset, buffer.to_vec()))
    }

    fn sync(&mut self, _data_only: bool) -> Result<()> {
        let mut content = self.0.disk.content.lock();
        content.needs_power(self.0.generation)?;
        content.count_change()?;
        content.files.get_mut(&self.0.name).ok_or(ErrorKind::NotFound)?.sync();
        Ok(())
    }

    fn set_len(&mut self, size: u64) -> Result<()> {
        self.0.change(FileChange::Length(usize::try_from(size).map_err(Error::other)?))
    }

    fn lock(&mut self, lock: LockKind) -> Result<bool> {
        let number = self.0.number;
        self.0.with(|file| {
            let others = file.locks.iter().filter(|(other, _)| **other != number);
            let strongest = others
                .map(|(_, lock)| *lock)
                .fold(LockKind::None, |one, other| if other > one { other } else { one });
            let is_free = match lock {
                LockKind::None => true,
                LockKind::Shared => strongest < LockKind::Pending,
                LockKind::Reserved | LockKind::Pending => strongest < LockKind::Reserved,
                LockKind::Exclusive => strongest == LockKind::None,
            };
            if is_free {
                file.locks.insert(number, lock);
            }
            Ok(is_free)
        })
    }

    fn unlock(&mut self, lock: LockKind) -> Result<bool> {
        let number = self.0.number;
        self.0.with(|file| {
            file.locks.insert(number, lock);
            Ok(true)
        })
    }

    fn reserved(&mut self) -> Result<bool> {
        self.0.with(|file| Ok(file.locks.values().any(|lock| *lock >= LockKind::Reserved)))
    }

    fn current_lock(&self) -> Result<LockKind> {
        self.0.with(|file| Ok(file.locks.get(&self.0.number).copied().unwrap_or_default()))
    }

    fn wal_index(&self, _readonly: bool) -> Result<OpenIndex> {
        Ok(OpenIndex(self.0.clone()))
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        let number = self.0.number;
        // Without power there is nothing to give back.
        let _ = self.0.with(|file| {
            file.locks.remove(&number);
            Ok(())
        });
    }
}

impl WalIndex for OpenIndex {
    fn map(&mut self, region: u32) -> Result<[u8; REGION]> {
        let new = || Box::new([0; REGION]);
        self.0.with(|file| Ok(**file.index.entry(region).or_insert_with(new)))
    }

    fn lock(&mut self, locks: Range<u8>, lock: WalIndexLock) -> Result<bool> {
        let handle = self.0.number;
        self.0.with(|file| {
            let is_free = |held: &IndexLock| {
                let has_other = held.exclusive.is_some_and(|other| other != handle);
                let is_shared = held.shared.iter().any(|other| *other != handle);
                match lock {
                    WalIndexLock::None => true,
                    WalIndexLock::Shared => !has_other,
                    WalIndexLock::Exclusive => !has_other && !is_shared,
                }
            };
            let held = &mut file.index_locks;
            if !locks.clone().all(|slot| is_free(held.entry(slot).or_default())) {
                return Ok(false);
            }
            for slot in locks {
                let held = held.entry(slot).or_default();
                held.shared.remove(&handle);
                held.exclusive = held.exclusive.filter(|other| *other != handle);
                match lock {
                    WalIndexLock::None => {}
                    WalIndexLock::Shared => drop(held.shared.insert(handle)),
                    WalIndexLock::Exclusive => held.exclusive = Some(handle),
                }
            }
            Ok(true)
        })
    }

    fn delete(self) -> Result<()> {
        self.0.with(|file| {
            file.index.clear();
            Ok(())
        })
    }

    fn pull(&mut self, region: u32, data: &mut [u8; REGION]) -> Result<()> {
        *data = self.map(region)?;
        Ok(())
    }

    fn push(&mut self, region: u32, data: &[u8; REGION]) -> Result<()> {
        self.0.with(|file| {
            file.index.insert(region, Box::new(*data));
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(disk: &SimulatedDisk, name: &str) -> Vec<u8> {
        disk.content.lock().files.get(name).map(|file| file.bytes.clone()).unwrap_or_default()
    }

    #[test]
    fn power_cut_loses_any_sectors_that_were_not_synced_and_no_other() {
        let mut found = BTreeSet::new();
        for seed in 0..50 {
            let disk = SimulatedDisk::of_this_thread(seed);
            let (name, generation) = ("/a".to_owned(), disk.content.lock().generation);
            disk.content.lock().files.insert(name.clone(), DiskFile::default());
            let mut file = OpenFile(FileHandle { disk: disk.clone(), name, number: 1, generation });
            file.write_all_at(&[1; 3 * SECTOR], 0).unwrap();
            file.sync(false).unwrap();
            file.write_all_at(&[2; 2 * SECTOR], 0).unwrap();
            disk.cut();
            assert!(file.write_all_at(&[3], 0).is_err());
            disk.power_on(seed);
            assert!(file.size().is_err(), "its process has ended");
            let left = read(&disk, "/a");
            assert_eq!(left.len(), 3 * SECTOR);
            let sectors: Vec<u8> = left.chunks(SECTOR).map(|sector| sector[0]).collect();
            assert!(left.chunks(SECTOR).all(|sector| sector.iter().all(|byte| *byte == sector[0])));
            found.insert(sectors);
        }
        let any = [[1, 1, 1], [1, 2, 1], [2, 1, 1], [2, 2, 1]].map(Vec::from);
        assert_eq!(found, BTreeSet::from(any));
    }

    #[test]
    fn power_is_cut_during_a_change() {
        let disk = SimulatedDisk::of_this_thread(0);
        let content =
            DiskContent { left: Some(1), ..DiskContent::new(7, StdRng::seed_from_u64(0)) };
        *disk.content.lock() = content;
        let count = || disk.content.lock().count_change().is_ok();
        assert_eq!([count(), count(), count()], [true, false, false]);
    }
}
