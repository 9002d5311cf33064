//! The store of this server alone, as what is served.

use super::dispatch::{Data, Usage};
use super::refusal::{Done, Refusal};
use super::reply::Reply;
use cenote_kv::{Step, Store};

impl Data for Store {
    type Step = Step;

    fn begin(&mut self) -> Step {
        Store::begin(self)
    }

    fn commit(&mut self, step: Step) -> Done {
        Store::commit(self, step).map_err(Refusal::Store)
    }

    fn roll_back(&mut self, step: Step) -> Done {
        Store::roll_back(self, step).map_err(Refusal::Store)
    }

    #[inline]
    fn expect<'k>(&self, keys: impl Iterator<Item = &'k [u8]>) {
        Store::expect(self, keys);
    }

    fn get_together<'k>(&mut self, _: impl Iterator<Item = &'k [u8]>, _: &mut Reply, _: usize) -> usize {
        0
    }

    fn set_together<'k>(&mut self, _: impl Iterator<Item = (&'k [u8], &'k [u8])>, _: &mut Reply) -> usize {
        0
    }

    fn check(&self) -> Done {
        Store::check(self).map_err(Refusal::Store)
    }

    fn expiring(&self) -> bool {
        Store::expiring(self) > 0
    }

    fn sweep(&mut self, now: u64, buckets: u64) -> Result<u64, Refusal> {
        Store::sweep(self, now, buckets).map_err(Refusal::Store)
    }

    fn usage(&self) -> Usage {
        Usage {
            keys: self.len(),
            expires: Some(Store::expiring(self)),
            used: self.space().stats().bytes(),
            capacity: self.space().parts().map(|part| part.capacity()).sum(),
            policy: "noeviction",
            counted: String::new(),
        }
    }
}
