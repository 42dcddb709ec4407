package faulttest

import (
	"testing"
	"time"
)

// Each of these histories violates linearizability, so the checker must refuse it.
func TestChecker_RefusesNonLinearizableHistories(t *testing.T) {
	read := func(k int) input { return input{read: []int{k}} }
	write := func(c ...change) input { return input{writes: c} }
	answer := func(v ...string) output { return output{values: v} }
	type op struct {
		in  input
		out output
	}
	for name, c := range map[string]struct {
		ops []op
		ok  bool
	}{
		"a plain life": {[]op{{write(change{value: "a"}), output{}}, {read(0), answer("a")},
			{write(change{}), output{}}, {read(0), answer("")}}, true},
		"a lost write": {[]op{{write(change{value: "a"}), output{}}, {read(0), answer("")}}, false},
		"a read of the past": {[]op{{write(change{value: "a"}), output{}},
			{write(change{value: "b"}), output{}}, {read(0), answer("a")}}, false},
		"half a transaction": {[]op{{write(change{value: "a"}, change{key: 1, value: "b"}), output{}},
			{input{read: []int{0, 1}}, answer("a", "")}}, false},
		"created twice": {[]op{{write(change{value: "a", absent: true}), output{}},
			{write(change{value: "b", absent: true}), output{}}}, false},
		"a conflict without a cause": {[]op{{write(change{value: "a"}), output{}},
			{write(change{value: "b", expect: "a"}), output{conflict: true}}}, false},
		"an ETag of the past": {[]op{{write(change{value: "a"}), output{}},
			{write(change{value: "b"}), output{}}, {write(change{value: "c", expect: "a"}), output{}}}, false},
		"an unknown that happens": {[]op{{write(change{value: "a"}), output{unknown: true}},
			{read(0), answer("a")}}, true},
		"an unknown that happens late": {[]op{{write(change{value: "a"}), output{unknown: true}}, {read(0), answer("")},
			{read(0), answer("a")}}, true},
		"an unknown that goes back": {[]op{{write(change{value: "a"}), output{unknown: true}},
			{read(0), answer("a")}, {read(0), answer("")}}, false},
		"a value that was never written": {[]op{{read(0), answer("x")}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			h := NewHistory()
			for _, o := range c.ops {
				call := h.now()
				h.add(1, call, o.in, o.out)
			}
			if err := h.Check(10*time.Second, t.TempDir()); (err == nil) != c.ok {
				t.Errorf("ok = %t: %v", c.ok, err)
			}
		})
	}
}

func TestChecker_FindsAnETagOfTwoValues(t *testing.T) {
	h := NewHistory()
	h.tag("k", "1", "a")
	h.tag("k", "1", "a")
	if err := h.Check(time.Second, t.TempDir()); err != nil {
		t.Fatal(err)
	}
	h.tag("k", "1", "b")
	if err := h.Check(time.Second, t.TempDir()); err == nil {
		t.Error("nothing was found")
	}
}
