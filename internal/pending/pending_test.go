package pending_test

import (
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/internal/pending"
)

// fake is a connection from a chosen address. It records whether it was closed.
type fake struct {
	net.Conn
	from   string
	closed bool
}

type address string

func (address) Network() string  { return "tcp" }
func (a address) String() string { return string(a) }

func (f *fake) RemoteAddr() net.Addr       { return address(f.from) }
func (f *fake) Read(b []byte) (int, error) { return copy(b, "x"), nil }
func (f *fake) Close() error               { f.closed = true; return nil }

func TestSet_ClosesTheOldest(t *testing.T) {
	const a, b, c = "192.0.2.1:1", "192.0.2.2:1", "192.0.2.3:1"
	for name, tc := range map[string]struct {
		limits pending.Limits
		from   []string
		want   []pending.Cut // for each connection
	}{
		"room for all": {pending.Limits{Total: 3, PerSource: 3}, []string{a, a, b}, []pending.Cut{0, 0, 0}},
		"the listener is full": {pending.Limits{Total: 2, PerSource: 2}, []string{a, b, c},
			[]pending.Cut{pending.TooMany, 0, 0}},
		"one source is full": {pending.Limits{Total: 9, PerSource: 2}, []string{b, a, a, a},
			[]pending.Cut{0, pending.TooManyOf, 0, 0}},
		"a source pays for its": {pending.Limits{Total: 3, PerSource: 2}, []string{b, a, a, a, a},
			[]pending.Cut{0, pending.TooManyOf, pending.TooManyOf, 0, 0}},
		"IPv4 within IPv6": {pending.Limits{Total: 9, PerSource: 1}, []string{a, "[::ffff:192.0.2.1]:2"},
			[]pending.Cut{pending.TooManyOf, 0}},
		"one network of IPv6": {pending.Limits{Total: 9, PerSource: 1},
			[]string{"[2001:db8::1]:1", "[2001:db8::2]:1"}, []pending.Cut{pending.TooManyOf, 0}},
		"two networks of IPv6": {pending.Limits{Total: 9, PerSource: 1},
			[]string{"[2001:db8::1]:1", "[2001:db8:0:1::1]:1"}, []pending.Cut{0, 0}},
		"addresses of other sort": {pending.Limits{Total: 9, PerSource: 1}, []string{"pipe", "pipe"},
			[]pending.Cut{pending.TooManyOf, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			s := pending.New(tc.limits)
			defer s.Close()
			var raw []*fake
			var all []*pending.Conn
			for _, from := range tc.from {
				raw = append(raw, &fake{from: from})
				all = append(all, s.Add(raw[len(raw)-1]))
			}
			for i, p := range all {
				if got := p.Done(); got != tc.want[i] || raw[i].closed != (got != pending.NotCut) ||
					(s.Explain(got) == "") != (got == pending.NotCut) {
					t.Errorf("connection %d: cut %d, closed %v, %q; want %d", i, got, raw[i].closed, s.Explain(got),
						tc.want[i])
				}
			}
		})
	}
}

func TestSet_MakesRoomWhenAHandshakeEnds(t *testing.T) {
	s := pending.New(pending.Limits{Total: 1, PerSource: 1})
	defer s.Close()
	for range 3 {
		raw := &fake{from: "192.0.2.1:1"}
		p := s.Add(raw)
		if first, again := p.Done(), p.Done(); first != pending.NotCut || again != pending.NotCut || raw.closed {
			t.Errorf("cut %d, %d; closed %v", first, again, raw.closed)
		}
	}
}

func TestSet_ClosesSilentConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := pending.New(pending.Limits{FirstByte: time.Second})
		defer s.Close()
		silent, speaking := &fake{from: "192.0.2.1:1"}, &fake{from: "192.0.2.1:2"}
		a, b := s.Add(silent), s.Add(speaking)
		if _, err := io.ReadFull(b, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		<-time.After(2 * time.Second)
		synctest.Wait()
		if got := a.Done(); got != pending.Silent || !silent.closed {
			t.Errorf("the silent connection: cut %d, closed %v", got, silent.closed)
		}
		if got := b.Done(); got != pending.NotCut || speaking.closed {
			t.Errorf("the other: cut %d, closed %v", got, speaking.closed)
		}
	})
}

func TestSetClose_ClosesPendingAndLaterConnections(t *testing.T) {
	s := pending.New(pending.Limits{})
	before, after := &fake{from: "192.0.2.1:1"}, &fake{from: "192.0.2.1:2"}
	a := s.Add(before)
	s.Close()
	b := s.Add(after)
	if a.Done() != pending.Closed || b.Done() != pending.Closed || !before.closed || !after.closed {
		t.Errorf("closed: %v, %v", before.closed, after.closed)
	}
}
