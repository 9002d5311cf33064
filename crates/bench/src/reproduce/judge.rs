//! How one of our numbers is judged beside one of the paper's.
//!
//! - Ours is as many samples as seeds were run. Its median is judged; least and most are shown beside it.
//! - A number agrees if it is within a fifth of the paper's, above or below. A paper that says "at least" or "at most"
//!   is held to its number all the same: far beyond it is no agreement. What does not agree is better or worse where
//!   one can say so, and differs where one cannot.
//! - An *input* is a number of the paper that the model was given (device profiles, the cost of a query, the width of a
//!   network card). That it comes back is shown, and never counted.

/// Differences beyond this share are no agreement.
pub const FIFTH: f64 = 0.2;

/// A number by several seeds: ascending.
#[derive(Debug, Clone, PartialEq)]
pub struct Samples(Vec<f64>);

impl Samples {
    /// Of any number of runs but none.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        assert!(!values.is_empty(), "a number was measured");
        values.sort_by(f64::total_cmp);
        Self(values)
    }

    /// All of them, ascending; what is not a number comes last.
    pub fn values(&self) -> &[f64] {
        &self.0
    }

    /// The middle one; of an even number the lower of the two.
    pub fn median(&self) -> f64 {
        self.0[(self.0.len() - 1) / 2]
    }

    /// The first of them.
    pub fn least(&self) -> f64 {
        self.0[0]
    }

    /// The last of them.
    pub fn most(&self) -> f64 {
        self.0[self.0.len() - 1]
    }

    /// Median, and in brackets least and most where they are others.
    pub fn text(&self, decimals: usize) -> String {
        let number = |v: f64| format!("{v:.decimals$}");
        let [median, least, most] = [self.median(), self.least(), self.most()].map(number);
        if least == most {
            return median;
        }
        format!("{median} ({least} to {most})")
    }
}

impl From<f64> for Samples {
    fn from(value: f64) -> Self {
        Self(vec![value])
    }
}

/// What the paper says of a number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Paper {
    /// It is about this.
    About(f64),
    /// It is this, or more.
    AtLeast(f64),
    /// It is this, or less.
    AtMost(f64),
}

impl Paper {
    /// The number.
    pub fn number(self) -> f64 {
        match self {
            Paper::About(p) | Paper::AtLeast(p) | Paper::AtMost(p) => p,
        }
    }

    fn text(self, decimals: usize) -> String {
        let number = format!("{:.decimals$}", self.number());
        match self {
            Paper::About(_) => number,
            Paper::AtLeast(_) => format!("at least {number}"),
            Paper::AtMost(_) => format!("at most {number}"),
        }
    }
}

/// What a comparison is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Something that the model was given.
    Input,
    /// A result; a larger number is better for what the paper argues for, here Cenote's.
    More,
    /// A result; a smaller number is.
    Less,
    /// A result; neither is better.
    Result,
}

/// How a number compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// Within a fifth of the paper's.
    Agrees,
    /// Not, and better.
    Better,
    /// Not, and worse.
    Worse,
    /// Not, and neither is better; or it is not a number.
    Differs,
    /// It was an input.
    Input,
}

impl Verdict {
    /// For tables.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Agrees => "agrees",
            Verdict::Better => "better",
            Verdict::Worse => "worse",
            Verdict::Differs => "differs",
            Verdict::Input => "input",
        }
    }

    /// The one of a name.
    pub fn named(name: &str) -> Option<Self> {
        let all = [Self::Agrees, Self::Better, Self::Worse, Self::Differs, Self::Input];
        all.into_iter().find(|verdict| verdict.name() == name)
    }
}

/// One of the paper's numbers, and ours.
#[derive(Debug, Clone)]
pub struct Claim {
    /// What is compared.
    pub what: String,
    /// The paper's number.
    pub paper: Paper,
    /// Ours, simulated.
    pub ours: Samples,
    /// What it is of.
    pub kind: Kind,
    /// Decimals that mean something.
    pub decimals: usize,
    /// Why it differs, where it does.
    pub why: &'static str,
}

impl Claim {
    /// How far the median is off, as a share of the paper's number.
    pub fn difference(&self) -> f64 {
        self.off(self.ours.median()).abs()
    }

    fn off(&self, ours: f64) -> f64 {
        ours / self.paper.number() - 1.0
    }

    /// Judges the median.
    pub fn verdict(&self) -> Verdict {
        self.judge(self.ours.median())
    }

    fn judge(&self, ours: f64) -> Verdict {
        let off = self.off(ours);
        match self.kind {
            Kind::Input => Verdict::Input,
            _ if off.abs() <= FIFTH => Verdict::Agrees,
            Kind::More if off > 0.0 => Verdict::Better,
            Kind::More if off < 0.0 => Verdict::Worse,
            Kind::Less if off < 0.0 => Verdict::Better,
            Kind::Less if off > 0.0 => Verdict::Worse,
            _ => Verdict::Differs,
        }
    }

    /// Whether the reason has to be given: a result that does not agree, or an input that does not come back.
    pub fn needs_reason(&self) -> bool {
        match self.verdict() {
            Verdict::Agrees => false,
            Verdict::Input => self.difference().is_nan() || self.difference() > FIFTH,
            _ => true,
        }
    }

    /// A row of a table: what, the paper's, ours, the verdict, by how many of the seeds where they are not of one mind.
    pub fn row(&self) -> Vec<String> {
        let verdict = self.verdict();
        let values = self.ours.values();
        let same = values.iter().filter(|v| self.judge(**v) == verdict).count();
        let mut text = match verdict {
            Verdict::Agrees | Verdict::Input => verdict.name().to_owned(),
            _ => format!("**{}**", verdict.name()),
        };
        if same < values.len() {
            text += &format!(", {same} of {} seeds", values.len());
        }
        if verdict == Verdict::Input && self.needs_reason() {
            text += ", does not come back";
        }
        let ours = self.ours.text(self.decimals);
        vec![self.what.clone(), self.paper.text(self.decimals), ours, text]
    }
}

/// How many results there are of each verdict, in words; inputs are told apart.
pub fn count(verdicts: &[Verdict]) -> String {
    let of = |verdict: Verdict| verdicts.iter().filter(|v| **v == verdict).count();
    let inputs = of(Verdict::Input);
    let told = [Verdict::Agrees, Verdict::Better, Verdict::Worse, Verdict::Differs].map(|v| (of(v), v.name()));
    let told: Vec<String> = told.map(|(n, name)| format!("{name}: {n}")).into();
    format!(
        "{} results are compared with the paper's ({}). {inputs} inputs are listed beside them and not counted.",
        verdicts.len() - inputs,
        told.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(paper: Paper, kind: Kind, ours: &[f64]) -> Claim {
        Claim {
            what: "x".into(),
            paper,
            ours: Samples::of(ours.iter().copied()),
            kind,
            decimals: 2,
            why: "because",
        }
    }

    /// Figure 10 could not fail: its numbers were held to be "at least" the paper's, so that 26 times where the paper
    /// has 4 was agreement.
    #[test]
    fn a_fifth_is_the_border_on_both_sides() {
        let verdict = |paper, kind, ours: f64| claim(paper, kind, &[ours]).verdict();
        for paper in [Paper::About(10.0), Paper::AtLeast(10.0), Paper::AtMost(10.0)] {
            assert_eq!(verdict(paper, Kind::Result, 11.9), Verdict::Agrees);
            assert_eq!(verdict(paper, Kind::Result, 8.1), Verdict::Agrees);
            assert_eq!(verdict(paper, Kind::Result, 12.1), Verdict::Differs);
            assert_eq!(verdict(paper, Kind::More, 12.1), Verdict::Better);
            assert_eq!(verdict(paper, Kind::More, 7.9), Verdict::Worse);
            assert_eq!(verdict(paper, Kind::Less, 7.9), Verdict::Better);
            assert_eq!(verdict(paper, Kind::Less, 12.1), Verdict::Worse);
        }
        assert_eq!(verdict(Paper::AtLeast(4.12), Kind::More, 26.3), Verdict::Better);
        assert_eq!(verdict(Paper::AtMost(0.07), Kind::Less, -0.02), Verdict::Better);
        assert_eq!(verdict(Paper::About(1.0), Kind::More, f64::NAN), Verdict::Differs);
    }

    #[test]
    fn seeds_that_are_not_of_one_mind_are_told() {
        let row = claim(Paper::About(10.0), Kind::More, &[5.1, 9.0, 30.6, 11.0, 10.0]).row();
        assert_eq!(row[2], "10.00 (5.10 to 30.60)");
        assert_eq!(row[3], "agrees, 3 of 5 seeds");
        assert_eq!(claim(Paper::About(10.0), Kind::More, &[10.0, 10.0]).row()[2], "10.00");
    }

    #[test]
    fn inputs_count_for_nothing() {
        let all = [
            claim(Paper::About(1.0), Kind::Input, &[1.0]),
            claim(Paper::About(1.0), Kind::Input, &[2.0]),
            claim(Paper::About(1.0), Kind::More, &[1.0]),
            claim(Paper::About(1.0), Kind::More, &[2.0]),
        ];
        let text = count(&all.each_ref().map(Claim::verdict));
        assert!(
            text.starts_with("2 results") && text.contains("agrees: 1, better: 1, worse: 0"),
            "{text}"
        );
        assert!(text.contains("2 inputs"), "{text}");
        assert_eq!(all[0].row()[3], "input");
        assert!(all[1].needs_reason() && all[1].row()[3].contains("does not come back"));
    }
}
