package membership_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/membership"
)

// store is a channel that keeps what it gets.
type store struct {
	send    [][]byte
	state   []byte
	limits  []int
	got     []string
	merged  []string
	joining bool
}

// Broadcasts implements membership.Channel.
func (s *store) Broadcasts(overhead, limit int) [][]byte {
	s.limits = append(s.limits, limit)
	var out [][]byte
	for _, msg := range s.send {
		if limit -= len(msg) + overhead; limit >= 0 {
			out = append(out, msg)
		}
	}
	return out
}

// Notify implements membership.Channel.
func (s *store) Notify(msg []byte) { s.got = append(s.got, string(msg)) }

// LocalState implements membership.Channel.
func (s *store) LocalState(bool) []byte { return s.state }

// MergeState implements membership.Channel.
func (s *store) MergeState(b []byte, join bool) {
	s.merged, s.joining = append(s.merged, string(b)), join
}

func TestChannels_MessagesRespectLimit(t *testing.T) {
	own, one, two := &store{send: [][]byte{[]byte("own")}}, &store{send: [][]byte{[]byte("one"), []byte("uno")}},
		&store{send: [][]byte{[]byte("two")}}
	m := membership.Mux(own, map[byte]membership.Channel{2: two, 1: one})
	sent := m.GetBroadcasts(5, 30)
	var got []string
	total := 0
	for _, msg := range sent {
		got = append(got, string(msg))
		total += len(msg) + 5
	}
	if diff := cmp.Diff([]string{"\x00own", "\x01one", "\x01uno"}, got); diff != "" || total > 30 {
		t.Errorf("%d bytes: %s", total, diff)
	}
	if diff := cmp.Diff([]int{30, 21}, slices.Concat(own.limits, one.limits, two.limits)); diff != "" {
		t.Error(diff)
	}
	for _, msg := range append(sent, nil, []byte("\x07nobody's")) {
		m.NotifyMsg(msg)
		clear(msg) // memberlist reuses the buffer
	}
	if diff := cmp.Diff([]string{"own", "one", "uno"}, slices.Concat(own.got, one.got, two.got)); diff != "" {
		t.Error(diff)
	}
}

func TestChannels_StatesAreSeparate(t *testing.T) {
	long := strings.Repeat("x", 1000)
	from := membership.Mux(&store{}, map[byte]membership.Channel{1: &store{state: []byte(long)},
		2: &store{state: []byte{}}, 9: &store{state: []byte("nine")}})
	one, two := &store{}, &store{}
	to := membership.Mux(&store{}, map[byte]membership.Channel{1: one, 2: two})
	to.MergeRemoteState(from.LocalState(true), true)
	if diff := cmp.Diff([]string{long, ""}, slices.Concat(one.merged, two.merged)); diff != "" || !one.joining {
		t.Error(diff)
	}
	to.MergeRemoteState(append(from.LocalState(false), 1, 200), false)
	if len(one.merged) != 2 || one.joining {
		t.Error("what precedes damage is lost")
	}
}

func TestFarewell_EncodesAndDecodes(t *testing.T) {
	names := []string{"n1/" + boot, "n2/" + boot}
	if diff := cmp.Diff(names, membership.DecodeFarewells(membership.EncodeFarewells(names))); diff != "" {
		t.Error(diff)
	}
	if membership.EncodeFarewells(nil) != nil {
		t.Error("an announcement without a name takes space")
	}
	for _, bad := range []string{"", "\x01", "\x02n1", "\x01" + strings.Repeat("x", 500)} {
		if name, ok := membership.DecodeFarewell([]byte(bad)); ok {
			t.Errorf("%q is a good-bye of %q", bad, name)
		}
	}
}

func FuzzChannels(f *testing.F) {
	f.Add([]byte{0, 3, 1, 1, 'a', 1, 2, 'h', 'i'})
	f.Add([]byte{1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Add(membership.EncodeFarewells([]string{"n1/" + boot}))
	f.Fuzz(func(t *testing.T, b []byte) {
		one := &store{}
		m := membership.Mux(one, nil)
		m.MergeRemoteState(b, false)
		m.NotifyMsg(b)
		total := 0
		for _, s := range one.merged {
			total += len(s)
		}
		if total > len(b) {
			t.Errorf("%d bytes of %d", total, len(b))
		}
		names := membership.DecodeFarewells(b)
		if diff := cmp.Diff(names, membership.DecodeFarewells(membership.EncodeFarewells(names))); len(names) > 0 &&
			diff != "" {
			t.Error(diff)
		}
		if name, ok := membership.DecodeFarewell(b); ok && name != string(b[1:]) {
			t.Errorf("%q", name)
		}
	})
}
