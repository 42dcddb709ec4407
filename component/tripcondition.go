package component

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode"
)

// TripCondition is the condition under which a circuit breaker opens. It compares the counters consecutiveFailures,
// requests and totalFailures, or arithmetic expressions of them. Comparisons can be combined with &&, || and
// parentheses. This syntax is a subset of Dapr's expression language. A TripCondition is immutable.
type TripCondition struct {
	text string
	root tripNode
}

// TripCounts are the counters that a TripCondition compares.
type TripCounts struct{ Requests, TotalFailures, ConsecutiveFailures uint32 }

// tripNode evaluates one node of a parsed expression for the counters c. The value of a comparison is 0 or 1.
type tripNode func(c TripCounts) float64

// String returns the condition as it was written.
func (t *TripCondition) String() string { return t.text }

// IsTrue reports whether the condition is true for the counts c. A comparison that contains a division by zero is
// false.
func (t *TripCondition) IsTrue(c TripCounts) bool { return t.root(c) == 1 }

// ParseTripCondition parses the text of a condition. The text of an error describes the condition as "it", for example
// "it is a number, not a condition".
func ParseTripCondition(text string) (*TripCondition, error) {
	p := tripParser{rest: text}
	p.next()
	root, kind := p.or()
	switch {
	case p.err != nil:
		return nil, p.err
	case p.token != "":
		return nil, fmt.Errorf("%q is not understood", p.token)
	case kind != tripCondition:
		return nil, fmt.Errorf("it is a number, not a condition")
	}
	return &TripCondition{text: text, root: root}, nil
}

type tripKind uint8

const (
	tripNumber tripKind = iota
	tripCondition
)

// tripParser is a recursive descent parser for the text of one condition.
type tripParser struct {
	rest  string
	token string // the current token; empty = the end
	depth int
	err   error
}

const maxTripDepth = 32

func (p *tripParser) fail(format string, args ...any) {
	if p.err == nil {
		p.err = fmt.Errorf(format, args...)
	}
	p.rest, p.token = "", ""
}

// next moves to the next token.
func (p *tripParser) next() {
	p.rest = strings.TrimLeftFunc(p.rest, unicode.IsSpace)
	size := 0
	switch {
	case p.rest == "":
	case strings.HasPrefix(p.rest, "&&"), strings.HasPrefix(p.rest, "||"), strings.HasPrefix(p.rest, ">="),
		strings.HasPrefix(p.rest, "<="), strings.HasPrefix(p.rest, "=="), strings.HasPrefix(p.rest, "!="):
		size = 2
	default:
		word := func(c byte) bool {
			return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '_'
		}
		for size = 0; size < len(p.rest) && word(p.rest[size]); size++ {
		}
		size = max(size, 1)
	}
	p.token, p.rest = p.rest[:size], p.rest[size:]
}

func (p *tripParser) or() (tripNode, tripKind) {
	return p.joined("||", p.and, func(a, b float64) bool { return a == 1 || b == 1 })
}

func (p *tripParser) and() (tripNode, tripKind) {
	return p.joined("&&", p.comparison, func(a, b float64) bool { return a == 1 && b == 1 })
}

func (p *tripParser) joined(
	op string, part func() (tripNode, tripKind), holds func(a, b float64) bool,
) (tripNode, tripKind) {
	left, kind := part()
	for p.token == op && p.err == nil {
		p.next()
		right, other := part()
		if kind != tripCondition || other != tripCondition {
			p.fail("%s joins conditions", op)
			break
		}
		left = condition(left, right, holds)
	}
	return left, kind
}

func condition(left, right tripNode, holds func(a, b float64) bool) tripNode {
	return func(c TripCounts) float64 {
		if holds(left(c), right(c)) {
			return 1
		}
		return 0
	}
}

func (p *tripParser) comparison() (tripNode, tripKind) {
	left, kind := p.sum()
	holds := map[string]func(a, b float64) bool{
		">": func(a, b float64) bool { return a > b }, ">=": func(a, b float64) bool { return a >= b },
		"<": func(a, b float64) bool { return a < b }, "<=": func(a, b float64) bool { return a <= b },
		"==": func(a, b float64) bool { return a == b },
		"!=": func(a, b float64) bool { return a < b || a > b }, // false for NaN
	}[p.token]
	if holds == nil {
		return left, kind
	}
	op := p.token
	p.next()
	right, other := p.sum()
	if kind != tripNumber || other != tripNumber {
		p.fail("%s compares numbers", op)
	}
	return condition(left, right, holds), tripCondition
}

func (p *tripParser) sum() (tripNode, tripKind) {
	return p.arithmetic(p.product, map[string]func(a, b float64) float64{
		"+": func(a, b float64) float64 { return a + b }, "-": func(a, b float64) float64 { return a - b },
	})
}

func (p *tripParser) product() (tripNode, tripKind) {
	return p.arithmetic(p.value, map[string]func(a, b float64) float64{
		"*": func(a, b float64) float64 { return a * b }, "/": divided,
	})
}

// divided returns a / b, or NaN if b is 0.
func divided(a, b float64) float64 {
	if b == 0 {
		return math.NaN()
	}
	return a / b
}

func (p *tripParser) arithmetic(
	part func() (tripNode, tripKind), ops map[string]func(a, b float64) float64,
) (tripNode, tripKind) {
	left, kind := part()
	for ops[p.token] != nil && p.err == nil {
		op, name := ops[p.token], p.token
		p.next()
		right, other := part()
		if kind != tripNumber || other != tripNumber {
			p.fail("%s takes numbers", name)
		}
		l := left
		left = func(c TripCounts) float64 { return op(l(c), right(c)) }
	}
	return left, kind
}

func (p *tripParser) value() (tripNode, tripKind) {
	token := p.token
	if token == "(" {
		return p.group()
	}
	p.next()
	switch token {
	case "requests":
		return func(c TripCounts) float64 { return float64(c.Requests) }, tripNumber
	case "totalFailures":
		return func(c TripCounts) float64 { return float64(c.TotalFailures) }, tripNumber
	case "consecutiveFailures":
		return func(c TripCounts) float64 { return float64(c.ConsecutiveFailures) }, tripNumber
	case "":
		p.fail("it ends too early")
	default:
		if v, err := strconv.ParseFloat(token, 64); err == nil && token[0] <= '9' {
			return func(TripCounts) float64 { return v }, tripNumber
		}
		p.fail("%q is not understood", token)
	}
	return func(TripCounts) float64 { return 0 }, tripNumber
}

func (p *tripParser) group() (tripNode, tripKind) {
	if p.depth++; p.depth > maxTripDepth {
		p.fail("it is nested too deeply")
		return func(TripCounts) float64 { return 0 }, tripNumber
	}
	p.next()
	node, kind := p.or()
	if p.token != ")" {
		p.fail("a parenthesis is not closed")
	}
	p.next()
	p.depth--
	return node, kind
}
