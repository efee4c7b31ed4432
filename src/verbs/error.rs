//! What may go wrong.

use libc::c_int;
use std::fmt;
use std::io;

/// A call that the library, the kernel or the device refused.
#[derive(Debug)]
pub struct VerbsError {
    call: &'static str,
    source: io::Error,
}

impl VerbsError {
    pub(super) fn new(call: &'static str, source: io::Error) -> VerbsError {
        VerbsError { call, source }
    }

    /// A call that returned nothing and set errno.
    pub(super) fn last(call: &'static str) -> VerbsError {
        VerbsError::new(call, io::Error::last_os_error())
    }

    pub(super) fn invalid(call: &'static str, why: &'static str) -> VerbsError {
        VerbsError::new(call, io::Error::new(io::ErrorKind::InvalidInput, why))
    }

    pub(super) fn forked(call: &'static str) -> VerbsError {
        VerbsError::new(call, io::Error::other("opened before fork(): the child must open the device itself"))
    }

    /// What a call returned: 0 is success. The manual pages promise an error number, or -1 and errno; some drivers return
    /// the negative of one.
    pub(super) fn check(call: &'static str, returned: c_int) -> Result<(), VerbsError> {
        match returned {
            0 => Ok(()),
            -1 => Err(VerbsError::last(call)),
            number => Err(VerbsError::new(call, io::Error::from_raw_os_error(number.saturating_abs()))),
        }
    }

    /// The function of the library, and what it was for where one function does several things.
    #[must_use]
    pub fn call(&self) -> &'static str {
        self.call
    }

    /// The error number, if the call was made at all.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        self.source.raw_os_error()
    }

    /// True for a call on an open, non-blocking descriptor that has nothing to give.
    pub(super) fn is_empty(&self) -> bool {
        self.source.kind() == io::ErrorKind::WouldBlock
    }
}

impl fmt::Display for VerbsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.call, self.source)?;
        if self.call == "ibv_reg_mr" && self.errno() == Some(libc::ENOMEM) {
            f.write_str("; the limit of locked memory may be too low (ulimit -l)")?;
        }
        Ok(())
    }
}

impl std::error::Error for VerbsError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

/// Why this machine offers no RDMA. None of these is a reason not to start.
#[derive(Debug, thiserror::Error)]
pub enum NoRdma {
    /// The library cannot be loaded.
    #[error("no RDMA: {library} cannot be loaded; install it (Debian: libibverbs1 ibverbs-providers librdmacm1)")]
    NotInstalled {
        /// Its file name.
        library: &'static str,
    },
    /// It lacks a function that is needed.
    #[error("no RDMA: {library} lacks {function}; install a newer one")]
    TooOld {
        /// Its file name.
        library: &'static str,
        /// The function.
        function: &'static str,
    },
    /// There is no device, or the kernel has no RDMA.
    #[error("no RDMA: the library is installed, but this machine has no RDMA device (see `rdma link`)")]
    NoDevices,
    /// Registered memory could not be kept right in a process that forks.
    #[error("no RDMA: {0}; another library registered memory before this one could make fork() safe")]
    Fork(VerbsError),
    /// The devices could not be listed.
    #[error("no RDMA: {0}")]
    Failed(#[from] VerbsError),
}
