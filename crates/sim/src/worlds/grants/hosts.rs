//! Hosts that share the device, as the world knows them: which were lost, which have yet to be called so, and which
//! were called so and are not.

/// A host with an agent.
#[derive(Debug, Clone, Copy, Default)]
struct State {
    /// Rises when it is lost: what begins there then is of another boot.
    life: u64,
    /// It was lost, and the pool has yet to be told.
    is_word_due: bool,
    /// The switch has cut it off from the device.
    is_cut: bool,
    /// It was, or may have been, called lost, and its processes go on.
    is_wronged: bool,
}

/// All of them, by number.
#[derive(Debug, Default)]
pub(super) struct Hosts(Vec<State>);

impl Hosts {
    pub fn new(count: usize) -> Self {
        Self(vec![State::default(); count])
    }

    pub fn life(&self, host: usize) -> u64 {
        self.0[host].life
    }

    /// All of its processes have ended.
    pub fn lose(&mut self, host: usize, cut: bool) {
        let state = &mut self.0[host];
        *state = State {
            life: state.life + 1,
            is_word_due: true,
            // One that is lost while it is cut off is let in again, too.
            is_cut: cut || state.is_cut,
            is_wronged: false,
        };
    }

    /// The pool knows that it was lost: it was told, or an agent of the next boot was let in, which it is not before.
    pub fn is_told(&mut self, host: usize, life: u64) {
        if self.0[host].life == life {
            self.0[host].is_word_due = false;
        }
    }

    pub fn is_word_due(&self, host: usize) -> bool {
        self.0[host].is_word_due
    }

    /// Whether any has yet to be called lost.
    pub fn words_due(&self) -> Vec<usize> {
        (0..self.0.len()).filter(|host| self.is_word_due(*host)).collect()
    }

    pub fn wrong(&mut self, host: usize) {
        self.0[host].is_wronged = true;
    }

    pub fn wronged(&self) -> Vec<usize> {
        (0..self.0.len()).filter(|host| self.0[*host].is_wronged).collect()
    }

    /// Takes those that the switch may let in again: the pool knows that they were lost.
    pub fn take_cut_off(&mut self) -> Vec<usize> {
        let may_come = |state: &State| state.is_cut && !state.is_word_due;
        let hosts: Vec<usize> = (0..self.0.len()).filter(|host| may_come(&self.0[*host])).collect();
        hosts.iter().for_each(|host| self.0[*host].is_cut = false);
        hosts
    }
}
