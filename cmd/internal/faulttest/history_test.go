package faulttest

import (
	"testing"
	"time"
)

// The checker says no: each of these histories breaks one promise.
func TestTheCheckerRefusesWhatNoSingleNodeWouldDo(t *testing.T) {
	read := func(k int) input { return input{read: []int{k}} }
	write := func(c ...change) input { return input{writes: c} }
	told := func(v ...string) output { return output{values: v} }
	type op struct {
		in  input
		out output
	}
	for name, c := range map[string]struct {
		ops []op
		ok  bool
	}{
		"a plain life":                 {[]op{{write(change{value: "a"}), output{}}, {read(0), told("a")}, {write(change{}), output{}}, {read(0), told("")}}, true},
		"a lost write":                 {[]op{{write(change{value: "a"}), output{}}, {read(0), told("")}}, false},
		"a read of the past":           {[]op{{write(change{value: "a"}), output{}}, {write(change{value: "b"}), output{}}, {read(0), told("a")}}, false},
		"half a transaction":           {[]op{{write(change{value: "a"}, change{key: 1, value: "b"}), output{}}, {input{read: []int{0, 1}}, told("a", "")}}, false},
		"created twice":                {[]op{{write(change{value: "a", absent: true}), output{}}, {write(change{value: "b", absent: true}), output{}}}, false},
		"a conflict without a cause":   {[]op{{write(change{value: "a"}), output{}}, {write(change{value: "b", expect: "a"}), output{conflict: true}}}, false},
		"an ETag of the past":          {[]op{{write(change{value: "a"}), output{}}, {write(change{value: "b"}), output{}}, {write(change{value: "c", expect: "a"}), output{}}}, false},
		"an unknown that happens":      {[]op{{write(change{value: "a"}), output{unknown: true}}, {read(0), told("a")}}, true},
		"an unknown that happens late": {[]op{{write(change{value: "a"}), output{unknown: true}}, {read(0), told("")}, {read(0), told("a")}}, true},
		"an unknown that goes back":    {[]op{{write(change{value: "a"}), output{unknown: true}}, {read(0), told("a")}, {read(0), told("")}}, false},
		"a value of nobody":            {[]op{{read(0), told("x")}}, false},
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

func TestAnETagOfTwoValuesIsFound(t *testing.T) {
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
