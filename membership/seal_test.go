package membership_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/membership"
)

func key(b byte) []byte { return bytes.Repeat([]byte{b}, 32) }

func sealer(t testing.TB, self string, keys ...[]byte) *membership.Sealer {
	t.Helper()
	s, err := membership.NewSealer("shop", self, keys...)
	must(t, err)
	return s
}

func TestSeal_PacketOpensOnceAtItsReceiver(t *testing.T) {
	now := time.Now()
	a, b, c := sealer(t, "a/1", key(1)), sealer(t, "b/1", key(1)), sealer(t, "c/1", key(1))
	again, other := sealer(t, "b/2", key(1)), sealer(t, "b/1", key(2))
	elsewhere, err := membership.NewSealer("other cluster", "b/1", key(1))
	must(t, err)
	for _, packet := range [][]byte{nil, []byte("hello"), bytes.Repeat([]byte("x"), 60_000)} {
		sealed := a.Seal("b/1", packet)
		if len(packet) > 0 && bytes.Contains(sealed, packet) {
			t.Error("it is not sealed")
		}
		for what, r := range map[string]struct {
			at   *membership.Sealer
			want membership.Reason
		}{
			"another node": {c, membership.Stale}, "its next incarnation": {again, membership.Stale},
			"the sender":    {a, membership.Stale},
			"another token": {other, membership.UnknownKey}, "another cluster name": {elsewhere, membership.Forged},
		} {
			if _, why := r.at.Open(sealed, now); why != r.want {
				t.Errorf("%s: %q, want %q", what, why, r.want)
			}
		}
		if got, why := b.Open(sealed, now); why != "" || !bytes.Equal(got, packet) {
			t.Errorf("it is refused: %q", why)
		}
		if _, why := b.Open(sealed, now); why != membership.Replayed {
			t.Errorf("the second time: %q", why)
		}
	}
	if _, why := b.Open([]byte("\x0fplain gossip, long enough to be sealed, but it is not sealed at all....."),
		now); why != membership.Plain {
		t.Errorf("a plain packet: %q", why)
	}
}

func TestSeal_DetectsEveryChangedByte(t *testing.T) {
	a, b := sealer(t, "a/1", key(1)), sealer(t, "b/1", key(1))
	sealed := a.Seal("b/1", []byte("hello"))
	for i := range sealed {
		bad := bytes.Clone(sealed)
		bad[i] ^= 1
		if _, why := b.Open(bad, time.Now()); why == "" {
			t.Errorf("byte %d does not count", i)
		}
		if _, why := b.Open(sealed[:i], time.Now()); why == "" {
			t.Errorf("%d bytes are enough", i)
		}
	}
	if _, why := b.Open(sealed, time.Now()); why != "" {
		t.Errorf("what was changed spoiled the true one: %q", why)
	}
}

func TestSeal_AcceptsReorderingWithinWindow(t *testing.T) {
	now := time.Now()
	a, b := sealer(t, "a/1", key(1)), sealer(t, "b/1", key(1))
	var sealed [][]byte
	for i := range 5000 {
		sealed = append(sealed, a.Seal("b/1", []byte(fmt.Sprint(i))))
	}
	random := rand.New(rand.NewPCG(1, 2))
	taken, top := map[int]bool{}, -1
	for range 20_000 {
		i := min(max(top+random.IntN(1500)-1200, 0), len(sealed)-1)
		if random.IntN(100) == 0 {
			i = random.IntN(len(sealed))
		}
		want := !taken[i] && (i > top || top-i < membership.WindowBits)
		if _, why := b.Open(sealed[i], now); (why == "") != want {
			t.Fatalf("packet %d after %d: %q, taken before: %t", i, top, why, taken[i])
		}
		if want {
			taken[i], top = true, max(top, i)
		}
	}
	if top < 4000 {
		t.Errorf("only %d were reached", top)
	}
}

func TestSeal_KeyRotation(t *testing.T) {
	now := time.Now()
	steps := [][][]byte{{key(1)}, {key(1), key(2)}, {key(2), key(1)}, {key(2)}}
	for i, keys := range steps {
		for _, others := range steps[max(0, i-1):min(len(steps), i+2)] {
			a, b := sealer(t, "a/1", keys...), sealer(t, "b/1", others...)
			if _, why := b.Open(a.Seal("b/1", nil), now); why != "" {
				t.Errorf("step %d: %q", i, why)
			}
		}
	}
	a, b := sealer(t, "a/1", key(1)), sealer(t, "b/1", key(1))
	old := a.Seal("b/1", nil)
	if _, why := b.Open(old, now); why != "" {
		t.Fatal(why)
	}
	for _, s := range []*membership.Sealer{a, b} {
		must(t, s.Rekey([][]byte{key(2)}))
	}
	if _, why := b.Open(old, now); why != membership.UnknownKey {
		t.Errorf("under the previous key: %q", why)
	}
	if _, why := b.Open(a.Seal("b/1", nil), now); why != "" {
		t.Errorf("under the new key: %q", why)
	}
	must(t, b.Rekey([][]byte{key(2), key(1)}))
	if _, why := b.Open(old, now); why != membership.Replayed {
		t.Errorf("the old packet, when its key is back: %q", why)
	}
	for _, bad := range [][][]byte{nil, {[]byte("short")}, {key(1), nil}} {
		if err := b.Rekey(bad); !fault.Is(err, fault.Invalid) {
			t.Errorf("keys %v: %v", bad, err)
		}
	}
}

func TestSeal_EndedSessionsStayClosed(t *testing.T) {
	now := time.Now()
	b := sealer(t, "b/1", key(1))
	first := sealer(t, "a/1", key(1))
	early, late := first.Seal("b/1", nil), first.Seal("b/1", nil)
	if _, why := b.Open(late, now); why != "" {
		t.Fatal(why)
	}
	now = now.Add(membership.IdleSession)
	for range membership.MaxSessions {
		if _, why := b.Open(sealer(t, "x/1", key(1)).Seal("b/1", nil), now); why != "" {
			t.Fatal(why)
		}
	}
	if full, floors := b.Sessions(); full != membership.MaxSessions || floors != 1 {
		t.Errorf("%d sessions and %d floors", full, floors)
	}
	for _, old := range [][]byte{early, late} {
		if _, why := b.Open(old, now); why != membership.Replayed {
			t.Errorf("an old packet: %q", why)
		}
	}
	if _, why := b.Open(first.Seal("b/1", nil), now); why != "" {
		t.Errorf("a new packet: %q", why)
	}
}

func FuzzOpenPacket(f *testing.F) {
	a := sealer(f, "a/1", key(1))
	f.Add(a.Seal("b/1", []byte("hello")))
	f.Add([]byte{0xC7})
	f.Fuzz(func(t *testing.T, packet []byte) {
		b := sealer(t, "b/1", key(1))
		if got, why := b.Open(packet, time.Time{}); why == "" && string(got) != "hello" {
			t.Errorf("forged: %q", packet)
		}
	})
}
