package language_test

import (
	"regexp"
	"strings"
)

// word is an expression that the project does not use. pattern is a regular expression that matches it. unless is a
// regular expression that matches permitted uses of it. In both, a blank matches any white space, including a line
// break. Case does not matter.
type word struct {
	not     string // the expression, as the style guide names it
	but     string // what to write
	pattern string
	unless  string // a use that is right: matched against the surroundings; may be empty
}

// words returns the word list. If an expression also has a normal use in English, its pattern matches only the
// unwanted use.
func words() []word {
	const server = `(?:nodes?|servers?|voters?|non-voters?|leaders?|followers?|replicas?|peers?|members?|sidecars?|` +
		`process(?:es)?|candidates?|instances?|machines?)`
	return []word{
		{"mend", "fix; in logs: hint", `mend(?:s|ed|ing)?`, ``},
		{"but for", "except", `but for`, `\bnot (?:for|only) .*but for`},
		{"but that", "except that", `\w+ but that`, ``}, // after a comma, "but that" joins two sentences
		{"for good", "permanently", `for good`, `for good (?:reason|measure|performance)`},
		{"of before, those of before", "previous, the earlier", `of before`, ``},
		{"else (at the end of a sentence)", "otherwise (at the start)", `else(?:[.;:)]|$)`,
			`(?:body|thing|where)\s+else|\b(?:one|what|who|or|little|much|all) else`},
		{"its like, the like", "similar writes, others of the same kind",
			`(?:its|their|the) likes?(?:[.,;:)]|$| and| or)`, ``},
		{"bears", "name the operation: has", `(?:bears?|borne)`, `in mind`},
		{"takes in", "name the operation: admits, reads",
			`(?:takes?|taking|took) (?:nobody |no node |none |it |them |all )?in`,
			`in (?:turn|order|memory|ms|seconds)\b`},
		{"stands before", "name the operation: wraps", `(?:stands?|standing|stood) before`, ``},
		{"is worth", "name the operation: costs, proves", `(?:is|are|was|were|be|been) worth`, ``},
		{"holds for", "applies to", `holds? for`, `for (?:\d|up to|at most|as long|the whole|some )`},
		{"nobody (for servers)", "no node", `nobody`, `^nobody$`}, // a name in a test
		{"who (for servers)", "which", server + `,? whom?|who (?:leads?|led|votes?|serves?|holds?)`, ``},
		{"said, told, asked (for program events)", "logged, reported, requested", `(?:said|told|asked)`, ``},
		{"a row of", "a sequence of, several", `a (?:long )?row of`, `row of (?:a|the) table`},
		{"life (of a process)", "incarnation",
			`(?:a|one|two|each|every|which|other|another|earlier|next|same|new|older|newer|first|second) (?:life|lives)`,
			`life-?(?:time|cycle)|life cycle|(?:which|each|one|other|another|first|second|new) lives|` +
				`life of (?:a|the|an|this) (?:connection|value|key|request|token|certificate|test|stream)`},
		{"mark (of a removed server)", "tombstone",
			`(?:marks? (?:of|for|on) (?:a |the |its |every |each )?(?:removed|removal|` + server +
				`)|(?:removal|removed) marks?)`, ``},
		{"vouched for", "verified, fresh until", `vouch(?:ed|es|ing)?`, ``},
		{"calm", "rate limit", `calm(?:s|ed|er|ly)?`, ``},
		{"crowd", "connection limit", `crowd(?:s|ed)?`, `internal/\S*crowd`},
		{"replica (meaning no vote)", "non-voter",
			`(?:replicas?\W[^.;]{0,60}\b(?:vot(?:e|es|ing|er|ers))|(?:as|becomes?) (?:a )?replicas?)`, ``},
		{"the existing runtime, a well-known runtime", "Dapr", `(?:existing|well-known|other|that) runtime`, ``},
	}
}

// finder is a compiled word.
type finder struct {
	word
	find, unless *regexp.Regexp
}

func finders() (out []finder) {
	compile := func(pattern string) *regexp.Regexp {
		return regexp.MustCompile(`(?is)` + strings.ReplaceAll(pattern, " ", `\s+`))
	}
	for _, w := range words() {
		f := finder{word: w, find: compile(`\b(?:` + w.pattern + `)` + end(w.pattern))}
		if w.unless != "" {
			f.unless = compile(w.unless)
		}
		out = append(out, f)
	}
	return out
}

// end returns the pattern for the end of a word. It returns "" if pattern contains "$" and so defines its own end.
func end(pattern string) string {
	if strings.Contains(pattern, "$") {
		return ""
	}
	return `\b`
}

// surroundings is how many bytes before and after an unwanted expression are searched for a permitted use.
const surroundings = 30

// in returns where the word is used in a text.
func (f finder) in(text string) (at []int) {
	for _, m := range f.find.FindAllStringIndex(text, -1) {
		around := text[max(0, m[0]-surroundings):min(len(text), m[1]+surroundings)]
		if f.unless == nil || !f.unless.MatchString(around) {
			at = append(at, m[0])
		}
	}
	return at
}
