package records_test

import (
	"encoding/hex"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/discovery/records"
)

// The bytes are those of version 1: nodes of one cluster may be one version apart.
func TestWire_Version1StaysReadable(t *testing.T) {
	const want = "0101" + // version, update
		"026e31" + "13" + "30313933623263346435653161326233633464" + // n1 and its boot id
		"00" + "01" + "02" + // whole, version 1, two entries
		"0a" + "0161" + "0470726f64" + "040000" + // a.prod, gRPC, not healthy, no load
		"06" + "0162" + "00" + "010107" + // b, HTTP, healthy, load 7
		"00" // no application has gone
	m := machine("n1")
	must(t, m.Serve([]records.Entry{{App: records.App{ID: "b"}, Protocol: records.HTTP, Healthy: true, Load: 7},
		{App: records.App{ID: "a", Namespace: "prod"}, Protocol: records.GRPC}}))
	msg := broadcasts(m, start)[0]
	if diff := cmp.Diff(want, hex.EncodeToString(msg)); diff != "" {
		t.Error(diff)
	}
	b := machine("n2", "n1")
	b.Receive(start, msg)
	if diff := cmp.Diff(m.Served(), b.Records()[0].Entries); diff != "" {
		t.Error(diff)
	}
}

func TestWire_SkipsUnknownFieldsAndProtocols(t *testing.T) {
	msg, err := hex.DecodeString("0101" + "026e31" + "0131" + "00" + "01" + "01" + "08" + "0162" + "00" + "630107" +
		"ffff" + "00")
	must(t, err)
	b := machine("n2")
	b.Members(start, []records.Member{{Incarnation: records.Incarnation{Node: "n1", Boot: "1"}, State: records.Alive}})
	b.Receive(start, msg)
	if len(b.Records()) != 1 {
		t.Fatalf("not read: %+v", b.Counts())
	}
	if e := b.Records()[0].Entries[0]; e.App.ID != "b" || e.Protocol.Callable() || !e.Healthy || e.Load != 7 {
		t.Errorf("%+v", e)
	}
	if next := broadcasts(b, start); len(next) != 1 || hex.EncodeToString(next[0]) != hex.EncodeToString(msg) {
		t.Error("it is not passed on as it came")
	}
}

func TestWire_DamageIsCountedAndIgnored(t *testing.T) {
	m := machine("n1")
	must(t, m.Serve([]records.Entry{app("a"), app("b")}))
	good := broadcasts(m, start)[0]
	b := machine("n2", "n1")
	for i := range good {
		b.Receive(start, good[:i])
	}
	b.Receive(start, append(append([]byte{}, good...), 0))
	b.Receive(start, append([]byte{9}, good[1:]...))
	if n := b.Counts().Bad; n != uint64(len(good)+2) || shows(b) != "" {
		t.Errorf("%d of %d are bad, shows %q", n, len(good)+2, shows(b))
	}
}

// FuzzReceive passes arbitrary messages to a machine. The machine must stay within its limits. A record that it
// accepts must be the same after it is sent to another node.
func FuzzReceive(f *testing.F) {
	m := machine("n1", "n2")
	if err := m.Serve([]records.Entry{app("a"), app("b")}); err != nil {
		f.Fatal(err)
	}
	m.Tick(start)
	for _, b := range m.Broadcasts(0, 1400) {
		f.Add(b)
	}
	f.Add(m.Digest())
	f.Add([]byte{1, 5, 0})
	f.Add([]byte{1, 6, 1})
	f.Fuzz(func(t *testing.T, msg []byte) {
		bounds := records.Bounds{Apps: 10, Record: 4096, Incarnations: 8, Bytes: 4096, Message: 1000, Answer: 4096}
		b := records.New(records.Options{Self: incarnation("n2"), Bounds: bounds})
		know(b, start, "n1")
		b.Receive(start, msg)
		_ = b.Compare(start, msg)
		_, _ = b.Answer(msg)
		b.Tick(start)
		for _, p := range b.Pulls(start.Add(time.Second)) {
			_ = b.Pulled(start, p, msg, nil)
		}
		if n, size := b.Size(); n > 8 || size > 4096 {
			t.Fatalf("%d records of %d bytes", n, size)
		}
		c := machine("n3", "n1", "n2")
		if err := c.Compare(start, b.Digest()); err != nil {
			t.Fatal(err)
		}
		for _, p := range c.Pulls(start) {
			answer, err := b.Answer(p.Request)
			if err := c.Pulled(start, p, answer, err); err != nil {
				t.Fatal(err)
			}
		}
		if b.Hash() != c.Hash() {
			t.Fatalf("b shows %q, c %q", shows(b), shows(c))
		}
	})
}
