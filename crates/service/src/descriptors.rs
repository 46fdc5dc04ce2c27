//! How many files and sockets the process may have. Most systems start a process with a soft limit of 1,024, which ends
//! far below what one is built for, and let it raise the limit itself up to the hard one.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// The limit on open descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// In force.
    pub soft: u64,
    /// Up to here the process may raise it.
    pub hard: u64,
}

/// Reads the limit, if the system says it.
pub fn limit() -> Option<Limit> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).ok()?;
    Some(Limit { soft, hard })
}

/// Raises the soft limit to `wanted`, or as far as the hard one allows; never lowers it. Returns the limit afterwards.
pub fn raise(wanted: u64) -> Option<Limit> {
    let before = limit()?;
    let soft = wanted.min(before.hard);
    // A refusal leaves the old limit, which is then what the caller hears.
    if soft > before.soft && setrlimit(Resource::RLIMIT_NOFILE, soft, before.hard).is_ok() {
        return Some(Limit { soft, ..before });
    }
    Some(before)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_raised_to_the_hard_limit_and_never_lowered() {
        let before = limit().unwrap();
        assert_eq!(raise(0), Some(before));
        let raised = raise(u64::MAX).unwrap();
        assert_eq!(raised.soft, before.hard);
        assert_eq!(limit(), Some(raised));
    }
}
