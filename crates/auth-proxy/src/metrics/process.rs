//! The process as the system sees it. What a system does not tell is left out.

use std::{
    sync::LazyLock,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Set at the first look, which [`Metrics::new`](super::Metrics::new) takes.
static STARTED: LazyLock<Duration> = LazyLock::new(|| SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default());

/// One look at the process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Process {
    /// Since 1970.
    pub(crate) started: Duration,
    pub(crate) resident_bytes: Option<u64>,
    pub(crate) open_descriptors: Option<u64>,
    /// The one in force; none where there is no limit.
    pub(crate) descriptor_limit: Option<u64>,
}

/// Reads `/proc`: some 3 ms at 10,000 descriptors.
pub(crate) fn look() -> Process {
    Process {
        started: *STARTED,
        resident_bytes: resident_bytes(),
        open_descriptors: open_descriptors(),
        descriptor_limit: service::descriptors::limit().map(|limit| limit.soft),
    }
}

fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

fn open_descriptors() -> Option<u64> {
    let open = std::fs::read_dir("/proc/self/fd").ok()?.count();
    // One of them is the directory that is being read.
    u64::try_from(open.saturating_sub(1)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn linux_tells_all() {
        let before = look();
        assert!(before.resident_bytes.unwrap() > 1024 * 1024, "{before:?}");
        assert!(before.descriptor_limit.unwrap() >= before.open_descriptors.unwrap(), "{before:?}");
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        assert!(before.started <= now && now - before.started < Duration::from_secs(3600), "{before:?}");
    }
}
