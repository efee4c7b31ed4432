//! The libraries, loaded at run time.

use super::abi;
use super::error::{NoRdma, VerbsError};
use super::functions::{CmFunctions, Functions, VerbsFunctions};
use super::process::Process;
use super::values::Transport;
use std::ffi::CStr;
use std::io;
use std::mem::ManuallyDrop;
use std::sync::Arc;

/// The functions of libibverbs and librdmacm. They are never unloaded.
pub struct Library {
    functions: Functions,
    /// Whoever loaded it. A forked child must load it for itself.
    process: Process,
}

/// A device, before it is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Device {
    /// Such as `mlx5_0`.
    pub name: String,
    /// What carries its operations.
    pub transport: Transport,
}

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Library").field("has_cm", &self.has_cm()).finish_non_exhaustive()
    }
}

impl Library {
    /// Loads libibverbs and, where there is one, librdmacm, and makes registered memory safe in a process that forks.
    ///
    /// Without librdmacm, iWARP devices cannot be used; see [`has_cm`](Library::has_cm).
    ///
    /// # Errors
    /// One line that says why this machine has no RDMA. It says nothing about devices: see [`devices`](Library::devices).
    pub fn load() -> Result<Arc<Library>, NoRdma> {
        Library::load_files(VERBS, CM)
    }

    /// The same with other file names, for tests.
    #[doc(hidden)]
    pub fn load_files(verbs: &'static str, cm: &'static str) -> Result<Arc<Library>, NoRdma> {
        let too_old = |library| move |function| NoRdma::TooOld { library, function };
        let loaded = open(verbs).ok_or(NoRdma::NotInstalled { library: verbs })?;
        // SAFETY: what has this name has these functions, and it is not unloaded.
        let verbs = unsafe { VerbsFunctions::of(&loaded) }.map_err(too_old(verbs))?;
        // SAFETY: likewise.
        let cm = open(cm).map(|loaded| unsafe { CmFunctions::of(&loaded) }.map_err(too_old(cm))).transpose()?;
        // SAFETY: these are the functions of the libraries.
        let library = unsafe { Library::from_functions(Functions { verbs, cm }) };
        // SAFETY: it may be called at any time, and says so if it was too late.
        VerbsError::check("ibv_fork_init", unsafe { (verbs.ibv_fork_init)() }).map_err(NoRdma::Fork)?;
        Ok(library)
    }

    /// A library of these functions: the devices of tests.
    ///
    /// # Safety
    /// Each function does what the manual page of its name says, with the structures of [`abi`], and stays callable.
    #[must_use]
    pub unsafe fn from_functions(functions: Functions) -> Arc<Library> {
        Arc::new(Library { functions, process: Process::current() })
    }

    /// Its functions, for tests that replace some of them.
    #[doc(hidden)]
    #[must_use]
    pub fn functions(&self) -> Functions {
        self.functions
    }

    /// The devices of this machine; never an empty list.
    ///
    /// # Errors
    /// [`NoRdma::NoDevices`] if there is none, or what the library says.
    pub fn devices(&self) -> Result<Vec<Device>, NoRdma> {
        let list = self.list()?;
        let describe = |raw: *mut abi::ibv_device| {
            // SAFETY: a device of the list, which outlives this call. Its name ends with 0.
            let (name, transport) = unsafe { (CStr::from_ptr((&raw const (*raw).name).cast()), (*raw).transport_type) };
            Device { name: name.to_string_lossy().into_owned(), transport: Transport(transport) }
        };
        let devices: Vec<Device> = list.devices().map(describe).collect();
        if devices.is_empty() { Err(NoRdma::NoDevices) } else { Ok(devices) }
    }

    /// False if librdmacm is not there: then iWARP devices cannot be used.
    #[must_use]
    pub fn has_cm(&self) -> bool {
        self.functions.cm.is_some()
    }

    pub(super) fn verbs(&self) -> &VerbsFunctions {
        &self.functions.verbs
    }

    pub(super) fn cm(&self) -> Result<&CmFunctions, VerbsError> {
        self.functions.cm.as_ref().ok_or_else(|| {
            VerbsError::new("rdma_cm", io::Error::new(io::ErrorKind::NotFound, "librdmacm.so.1 is not installed"))
        })
    }

    /// True in the process that loaded it: nothing is destroyed by another one.
    pub(super) fn is_ours(&self) -> bool {
        self.process.is_current()
    }

    /// Refuses a call in a forked child.
    #[inline]
    pub(super) fn check(&self, call: &'static str) -> Result<(), VerbsError> {
        if self.is_ours() { Ok(()) } else { Err(VerbsError::forked(call)) }
    }

    pub(super) fn list(&self) -> Result<DeviceList<'_>, NoRdma> {
        const CALL: &str = "ibv_get_device_list";
        self.check(CALL)?;
        let mut count = 0;
        // SAFETY: the list is freed by its guard.
        let raw = unsafe { (self.verbs().ibv_get_device_list)(&raw mut count) };
        if !raw.is_null() {
            return Ok(DeviceList { raw, count: usize::try_from(count).unwrap_or(0), library: self });
        }
        let error = VerbsError::last(CALL);
        // The kernel has no RDMA at all.
        Err(if error.errno() == Some(libc::ENOSYS) { NoRdma::NoDevices } else { NoRdma::Failed(error) })
    }
}

/// The devices as the library lists them, until it is dropped.
pub(super) struct DeviceList<'l> {
    raw: *mut *mut abi::ibv_device,
    count: usize,
    library: &'l Library,
}

impl DeviceList<'_> {
    pub fn devices(&self) -> impl Iterator<Item = *mut abi::ibv_device> {
        // SAFETY: the list has that many entries.
        (0..self.count).map(|i| unsafe { self.raw.add(i).read() })
    }

    /// The device of that name.
    pub fn find(&self, name: &str) -> Option<*mut abi::ibv_device> {
        // SAFETY: a device of the list; its name ends with 0.
        let is = |raw: &*mut abi::ibv_device| unsafe { CStr::from_ptr((&raw const (**raw).name).cast()) };
        self.devices().find(|raw| is(raw).to_bytes() == name.as_bytes())
    }
}

impl Drop for DeviceList<'_> {
    fn drop(&mut self) {
        // SAFETY: the list came from the library and is freed once.
        unsafe { (self.library.verbs().ibv_free_device_list)(self.raw) };
    }
}

/// Loads a library and never unloads it.
fn open(name: &str) -> Option<ManuallyDrop<libloading::Library>> {
    // SAFETY: the initialisers of these libraries may run in any thread.
    unsafe { libloading::Library::new(name) }.ok().map(ManuallyDrop::new)
}

const VERBS: &str = "libibverbs.so.1";
const CM: &str = "librdmacm.so.1";
