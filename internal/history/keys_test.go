package history

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"
)

// TestKeys_RefuseNonLinearizableHistories checks that exactly the histories with ok are accepted as linearizable.
func TestKeys_RefuseNonLinearizableHistories(t *testing.T) {
	read := func(k int) KeyCall { return KeyCall{Read: []int{k}} }
	write := func(c ...Change) KeyCall { return KeyCall{Write: c} }
	answer := func(v ...string) KeyAnswer { return KeyAnswer{Values: v} }
	type op struct {
		in  KeyCall
		out KeyAnswer
	}
	for name, c := range map[string]struct {
		ops []op
		ok  bool
	}{
		"a plain life": {[]op{{write(Change{Value: "a"}), KeyAnswer{}}, {read(0), answer("a")},
			{write(Change{}), KeyAnswer{}}, {read(0), answer("")}}, true},
		"a lost write": {[]op{{write(Change{Value: "a"}), KeyAnswer{}}, {read(0), answer("")}}, false},
		"a read of the past": {[]op{{write(Change{Value: "a"}), KeyAnswer{}},
			{write(Change{Value: "b"}), KeyAnswer{}}, {read(0), answer("a")}}, false},
		"half a transaction": {[]op{{write(Change{Value: "a"}, Change{Key: 1, Value: "b"}), KeyAnswer{}},
			{KeyCall{Read: []int{0, 1}}, answer("a", "")}}, false},
		"created twice": {[]op{{write(Change{Value: "a", Absent: true}), KeyAnswer{}},
			{write(Change{Value: "b", Absent: true}), KeyAnswer{}}}, false},
		"a conflict without a cause": {[]op{{write(Change{Value: "a"}), KeyAnswer{}},
			{write(Change{Value: "b", Expect: "a"}), KeyAnswer{Conflict: true}}}, false},
		"an ETag of the past": {[]op{{write(Change{Value: "a"}), KeyAnswer{}},
			{write(Change{Value: "b"}), KeyAnswer{}}, {write(Change{Value: "c", Expect: "a"}), KeyAnswer{}}}, false},
		"an unknown that happens": {[]op{{write(Change{Value: "a"}), KeyAnswer{Unknown: true}},
			{read(0), answer("a")}}, true},
		"an unknown that happens late": {[]op{{write(Change{Value: "a"}), KeyAnswer{Unknown: true}},
			{read(0), answer("")}, {read(0), answer("a")}}, true},
		"an unknown that goes back": {[]op{{write(Change{Value: "a"}), KeyAnswer{Unknown: true}},
			{read(0), answer("a")}, {read(0), answer("")}}, false},
		"an unknown that happens twice": {[]op{{write(Change{Value: "a"}), KeyAnswer{Unknown: true}},
			{read(0), answer("a")}, {write(Change{Value: "b"}), KeyAnswer{}}, {read(0), answer("a")}}, false},
		"an unknown update before another one": {[]op{{write(Change{Value: "a"}), KeyAnswer{}},
			{write(Change{Value: "b", Expect: "a"}), KeyAnswer{Unknown: true}},
			{write(Change{Value: "c", Expect: "a"}), KeyAnswer{Conflict: true}}, {read(0), answer("b")}}, true},
		"an unknown update and a conflict that exclude each other": {[]op{{write(Change{Value: "a"}), KeyAnswer{}},
			{write(Change{Value: "b", Expect: "a"}), KeyAnswer{Unknown: true}},
			{write(Change{Value: "c", Expect: "a"}), KeyAnswer{Conflict: true}}, {read(0), answer("a")}}, false},
		"two updates from one ETag": {[]op{{write(Change{Value: "a"}), KeyAnswer{}},
			{write(Change{Value: "b", Expect: "a"}), KeyAnswer{}},
			{write(Change{Value: "c", Expect: "a"}), KeyAnswer{}}}, false},
		"a delete after an unknown write": {[]op{{write(Change{Value: "a"}), KeyAnswer{Unknown: true}},
			{write(Change{}), KeyAnswer{}}, {read(0), answer("")}}, true},
		"a value that was never written": {[]op{{read(0), answer("x")}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			h := NewKeys(CallClock())
			for _, o := range c.ops {
				call := h.Now()
				h.Add(1, call, o.in, o.out)
			}
			if err := h.Check(10*time.Second, t.TempDir()); (err == nil) != c.ok {
				t.Errorf("ok = %t: %v", c.ok, err)
			}
		})
	}
}

func TestKeys_FindETagsThatDoNotNameOneValue(t *testing.T) {
	for name, c := range map[string]struct {
		tags [][2]string // ETag and value
		ok   bool
	}{
		"one of each":            {[][2]string{{"1", "a"}, {"1", "a"}, {"2", "b"}}, true},
		"an ETag of two values":  {[][2]string{{"1", "a"}, {"1", "b"}}, false},
		"a value with two ETags": {[][2]string{{"1", "a"}, {"2", "a"}}, false},
		"a store without ETags":  {[][2]string{{"", "a"}, {"", "b"}}, true},
		"keys without a value":   {[][2]string{{"1", ""}, {"2", ""}}, true},
	} {
		h := NewKeys(CallClock())
		for _, tag := range c.tags {
			h.ETag("k", 0, tag[0], tag[1])
			h.ETag("k", 1, tag[0], "other "+tag[0]) // another key
		}
		if err := h.Check(time.Second, t.TempDir()); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestKeys_TakeRemovesFamilies checks that families that are taken out are checked alone, and that the rest goes on.
func TestKeys_TakeRemovesFamilies(t *testing.T) {
	h := NewKeys(CallClock())
	set := func(family, value string) {
		h.Add(1, h.Now(), KeyCall{Family: family, Write: []Change{{Value: value}}}, KeyAnswer{})
		h.ETag(family, 0, "1", value)
	}
	read := func(family, value string) {
		h.Add(1, h.Now(), KeyCall{Family: family, Read: []int{0}}, KeyAnswer{Values: []string{value}})
	}
	set("a", "1")
	read("a", "")
	set("b", "1")
	taken := h.Take("a")
	if err := taken.Check(time.Second, t.TempDir()); err == nil {
		t.Error("the violation in the taken part is not found")
	}
	set("a", "2") // a family of the same name begins anew, and so do its ETags
	read("a", "2")
	read("b", "1")
	if err := h.Check(time.Second, t.TempDir()); err != nil {
		t.Error(err)
	}
	if h.Size() != 6 || taken.Size() != 2 {
		t.Errorf("the sizes are %d and %d, want 6 and 2", h.Size(), taken.Size())
	}
}

// TestCheck_ErrorShowsTheHistory checks that the error names the calls, and a file that shows them.
func TestCheck_ErrorShowsTheHistory(t *testing.T) {
	h := NewKeys(CallClock())
	h.Add(7, h.Now(), KeyCall{Family: "k", Read: []int{0}}, KeyAnswer{Values: []string{"never written"}})
	err := h.Check(time.Second, t.TempDir())
	var n *NotLinearizable
	if !errors.As(err, &n) {
		t.Fatalf("the error is %v", err)
	}
	picture, found := strings.CutPrefix(n.Picture, "see ")
	if _, err := os.Stat(picture); !found || err != nil || n.Undecided || n.Family != "k" {
		t.Errorf("%+v: %v", n, err)
	}
	if len(n.History) != 1 || !strings.Contains(n.History[0], "client 7") {
		t.Errorf("the history is %q", n.History)
	}
}
