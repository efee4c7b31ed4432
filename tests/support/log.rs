//! What the engines of this process say in the log.

use std::io::Write;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};

#[derive(Clone, Default)]
pub struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Lines {
    /// From now on. They are lines of all engines: one test at a time, as long as it holds the second.
    pub fn new() -> (Lines, MutexGuard<'static, ()>) {
        let alone = super::hostile::alone();
        static LINES: LazyLock<Lines> = LazyLock::new(|| {
            let lines = Lines::default();
            let writer = lines.clone();
            let format = tracing_subscriber::fmt().with_writer(move || writer.clone()).with_ansi(false);
            tracing::subscriber::set_global_default(format.finish()).unwrap();
            lines
        });
        LINES.0.lock().unwrap().clear();
        (LINES.clone(), alone)
    }

    /// Those that contain `part`.
    pub fn with(&self, part: &str) -> Vec<String> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        text.lines().filter(|line| line.contains(part)).map(str::to_owned).collect()
    }
}
