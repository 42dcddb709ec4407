package records_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quorate/quorate/discovery/records"
	"github.com/quorate/quorate/internal/fault"
)

var start = time.Unix(1_000_000, 0)

func incarnation(node string) records.Incarnation {
	return records.Incarnation{Node: node, Boot: "0193b2c4d5e1a2b3c4d"}
}

func machine(node string, peers ...string) *records.Machine {
	m := records.New(records.Options{Self: incarnation(node)})
	know(m, start, peers...)
	return m
}

// know sets the nodes that m knows: "n2" is alive, "n2 failed" has failed and "n2 left" has left.
func know(m *records.Machine, now time.Time, peers ...string) {
	var list []records.Member
	for _, p := range peers {
		name, state, _ := strings.Cut(p, " ")
		one := records.Member{Incarnation: incarnation(name), Peer: name, State: records.Alive}
		switch state {
		case "failed":
			one.State = records.Failed
		case "left":
			one.State = records.Left
		}
		list = append(list, one)
	}
	m.Members(now, list)
}

func app(id string) records.Entry {
	return records.Entry{App: records.App{ID: id}, Protocol: records.HTTP, Healthy: true}
}

// broadcasts returns what m broadcasts after a tick.
func broadcasts(m *records.Machine, now time.Time) [][]byte {
	m.Tick(now)
	var out [][]byte
	for _, b := range m.Broadcasts(4, 1300) {
		if b[1] != 3 { // summaries
			out = append(out, b)
		}
	}
	return out
}

func hear(m *records.Machine, now time.Time, msgs [][]byte) {
	for _, b := range msgs {
		m.Receive(now, b)
	}
}

// shows returns the records of m: "n2:a,b n3:c".
func shows(m *records.Machine) string {
	var out []string
	for _, r := range m.Records() {
		var apps []string
		for _, e := range r.Entries {
			apps = append(apps, e.App.String())
		}
		out = append(out, r.Node+":"+strings.Join(apps, ","))
	}
	return strings.Join(out, " ")
}

// pullAll makes m pull from others until it lacks nothing.
func pullAll(t *testing.T, m *records.Machine, now time.Time, others map[string]*records.Machine) {
	t.Helper()
	for range 20 {
		for _, p := range m.Pulls(now) {
			answer, err := others[p.Peer].Answer(p.Request)
			must(t, m.Pulled(now, p, answer, err))
		}
	}
}

func TestMachine_ShowsRecordOnlyWhileNodeIsAlive(t *testing.T) {
	a, b := machine("n1", "n2"), machine("n2", "n1")
	must(t, a.Serve([]records.Entry{app("orders")}))
	news := broadcasts(a, start)
	hear(b, start, news)
	for i, c := range []struct {
		state string
		after time.Duration
		want  string
	}{
		{"n1", 0, "n1:orders"},
		{"n1 failed", time.Second, ""},
		{"n1", 2 * time.Second, "n1:orders"}, // it is back at once
		{"n1 left", 3 * time.Second, ""},
		{"", 4 * time.Second, ""},
	} {
		know(b, start.Add(c.after), c.state)
		if got := shows(b); got != c.want {
			t.Errorf("step %d, %q: shows %q, want %q", i, c.state, got, c.want)
		}
	}
	hear(b, start.Add(5*time.Second), news)
	if n, _ := b.Size(); n != 0 {
		t.Error("a late broadcast brought the record of a node that left back")
	}
	if n := b.Counts().Ended; n != 1 {
		t.Errorf("%d messages about incarnations that ended", n)
	}
}

func TestMachine_KeepsRecordOfUnknownNodeForAMinute(t *testing.T) {
	a, b := machine("n1"), machine("n2")
	must(t, a.Serve([]records.Entry{app("orders")}))
	news := broadcasts(a, start)
	hear(b, start, news)
	if got := shows(b); got != "" {
		t.Errorf("shows %q of a node that gossip does not know", got)
	}
	know(b, start.Add(50*time.Second), "n1")
	if got := shows(b); got != "n1:orders" {
		t.Errorf("then shows %q", got)
	}

	c := machine("n3")
	hear(c, start, news)
	c.Tick(start.Add(61 * time.Second))
	if n, _ := c.Size(); n != 0 {
		t.Error("it is kept longer")
	}
}

func TestMachine_RestartIsNewIncarnation(t *testing.T) {
	b := machine("n2")
	old, again := incarnation("n1"), records.Incarnation{Node: "n1", Boot: "1"}
	for i, l := range []records.Incarnation{old, again} {
		m := records.New(records.Options{Self: l})
		for v := range 3 - i { // the new incarnation has fewer versions
			must(t, m.Serve([]records.Entry{app(fmt.Sprint("v", v, "-", i))}))
			must(t, m.Serve([]records.Entry{app(fmt.Sprint("incarnation", i))}))
		}
		b.Members(start, []records.Member{{Incarnation: l, Peer: "n1", State: records.Alive}})
		hear(b, start, broadcasts(m, start))
		if got, want := shows(b), fmt.Sprint("n1:incarnation", i); got != want {
			t.Errorf("shows %q, want %q", got, want)
		}
	}
}

func TestMachine_CoalescesChanges(t *testing.T) {
	a := machine("n1", "n2")
	must(t, a.Serve([]records.Entry{app("a")}))
	if n := len(broadcasts(a, start)); n != 1 {
		t.Fatalf("%d messages", n)
	}
	total := uint64(0)
	for i := range 1000 { // one change every millisecond
		e := app("a")
		e.Healthy = i%2 == 0
		must(t, a.Serve([]records.Entry{e}))
		before := a.Queued()
		a.Tick(start.Add(time.Duration(i) * time.Millisecond))
		if a.Queued() > before {
			total++
		}
		a.Broadcasts(4, 1300)
	}
	if total > 11 {
		t.Errorf("%d broadcasts for a thousand changes in a second", total)
	}
}

func TestMachine_AnnouncesLoadRarely(t *testing.T) {
	a := machine("n1", "n2", "n3", "n4")
	b := machine("n2", "n1")
	e := app("a")
	must(t, a.Serve([]records.Entry{e}))
	hear(b, start, broadcasts(a, start))
	told := 0
	last := b.Version()
	for ms := time.Duration(0); ms < 10*time.Second; ms += 100 * time.Millisecond {
		e.Load++
		must(t, a.Serve([]records.Entry{e}))
		hear(b, start.Add(ms), broadcasts(a, start.Add(ms)))
		if b.Version() > last {
			told, last = told+1, b.Version()
		}
	}
	if told < 3 || told > 5 {
		t.Errorf("announced %d times in ten seconds", told)
	}
	e.Healthy = false
	must(t, a.Serve([]records.Entry{e}))
	hear(b, start.Add(11*time.Second), broadcasts(a, start.Add(11*time.Second)))
	if b.Records()[0].Entries[0].Healthy {
		t.Error("health waits with load")
	}
}

func TestMachine_BroadcastsChangesOfLongRecord(t *testing.T) {
	a, b, c := machine("n1", "n2", "n3"), machine("n2", "n1"), machine("n3", "n1")
	var list []records.Entry
	for i := range 400 {
		list = append(list, app(fmt.Sprintf("application-%03d", i)))
	}
	must(t, a.Serve(list))
	announced := broadcasts(a, start)
	hear(b, start, announced)
	hear(c, start, announced)
	now := start.Add(time.Second)
	pullAll(t, b, now, map[string]*records.Machine{"n1": a})
	pullAll(t, c, now, map[string]*records.Machine{"n1": a})
	for i := range 3 {
		now = now.Add(time.Second)
		list[i].Healthy = false
		list = append(list[:10], list[11:]...) // the eleventh goes
		must(t, a.Serve(list))
		news := broadcasts(a, now)
		if len(news) == 0 || len(news[0]) > 600 {
			t.Fatalf("a change of one of 400 is announced in %d messages", len(news))
		}
		hear(b, now, news)
		if i == 2 { // c receives only the last
			hear(c, now, news)
		}
	}
	for name, m := range map[string]*records.Machine{"who heard all": b, "who heard the last": c} {
		if diff := cmp.Diff(list, m.Records()[0].Entries); diff != "" || len(m.Pulls(now.Add(time.Second))) > 0 {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestMachine_PullsMissingBase(t *testing.T) {
	a, b := machine("n1", "n2"), machine("n2", "n1")
	var list []records.Entry
	for i := range 400 {
		list = append(list, app(fmt.Sprintf("application-%03d", i)))
	}
	must(t, a.Serve(list))
	broadcasts(a, start)
	list[7].Healthy = false
	must(t, a.Serve(list))
	hear(b, start, broadcasts(a, start.Add(time.Second)))
	if got := shows(b); got != "" {
		t.Errorf("a change without its base shows %.50q", got)
	}
	pullAll(t, b, start.Add(2*time.Second), map[string]*records.Machine{"n1": a})
	if diff := cmp.Diff(list, b.Records()[0].Entries); diff != "" {
		t.Error(diff)
	}
}

func TestMachine_BoundsAnswersAndPullsRest(t *testing.T) {
	bounds := records.DefaultBounds()
	bounds.Answer = 2000
	a, b := records.New(records.Options{Self: incarnation("n1"), Bounds: bounds}), machine("n2")
	var names []string
	for i := range 30 {
		names = append(names, fmt.Sprintf("x%02d", i))
	}
	know(a, start, append(names, "n2")...)
	know(b, start, append(names, "n1")...)
	for _, n := range names {
		m := machine(n)
		must(t, m.Serve([]records.Entry{app("a-" + strings.Repeat(n, 10)), app("b-" + n)}))
		hear(a, start, broadcasts(m, start))
	}
	must(t, b.Compare(start, a.Digest()))
	rounds := 0
	for pulls := b.Pulls(start); len(pulls) > 0; pulls = b.Pulls(start) {
		rounds++
		for _, p := range pulls {
			answer, err := a.Answer(p.Request)
			if len(answer) > 2000 {
				t.Fatalf("an answer of %d bytes", len(answer))
			}
			must(t, b.Pulled(start, p, answer, err))
		}
	}
	if n, _ := b.Size(); n != 30 || rounds < 2 {
		t.Errorf("%d records after %d rounds", n, rounds)
	}
}

func TestMachine_RefusesRecordsOverBounds(t *testing.T) {
	bounds := records.Bounds{Apps: 3, Record: 1000, Incarnations: 4, Bytes: 600, Message: 1000, Answer: 1000}
	m := records.New(records.Options{Self: incarnation("n0"), Bounds: bounds})
	var four []records.Entry
	for i := range 4 {
		four = append(four, app(fmt.Sprint("a", i)))
	}
	if err := m.Serve(four); !fault.Is(err, fault.TooLarge) {
		t.Errorf("four of three: %v", err)
	}
	if err := m.Serve([]records.Entry{app("a"), app("a")}); !fault.Is(err, fault.Invalid) {
		t.Errorf("twice: %v", err)
	}
	if err := m.Serve([]records.Entry{{App: records.App{ID: "a"}, Protocol: "carrier pigeon"}}); !fault.Is(err,
		fault.Invalid) {
		t.Errorf("an unknown protocol: %v", err)
	}
	var names []string
	for i := range 10 {
		names = append(names, fmt.Sprint("n", i+1))
	}
	know(m, start, names...)
	for i, n := range names {
		o := machine(n)
		list := []records.Entry{app("a")}
		if i == 0 {
			list = append(four, app("b"))
		}
		must(t, o.Serve(list))
		hear(m, start, broadcasts(o, start))
	}
	if n, size := m.Size(); n > 4 || size > 600 || n == 0 {
		t.Errorf("%d records of %d bytes are held", n, size)
	}
	if m.Counts().Refused == 0 {
		t.Error("nothing was refused")
	}
}

func TestMachine_OnlyOwnNodeWritesItsRecord(t *testing.T) {
	m, forger := machine("n1", "n2"), records.New(records.Options{Self: incarnation("n1")})
	must(t, m.Serve([]records.Entry{app("mine")}))
	for i := range 5 {
		must(t, forger.Serve([]records.Entry{app(fmt.Sprint("forged", i))}))
	}
	hear(m, start, broadcasts(forger, start))
	must(t, m.Compare(start, forger.Digest()))
	if got := shows(m); got != "n1:mine" || len(m.Pulls(start.Add(time.Second))) > 0 {
		t.Errorf("shows %q", got)
	}
}

func TestMachine_GivesUpUnreachableNode(t *testing.T) {
	b := machine("n2", "n1")
	pulls := 0
	for s := range 120 {
		now := start.Add(time.Duration(s) * time.Second)
		b.Tick(now)
		for _, p := range b.Pulls(now) {
			pulls++
			if err := b.Pulled(now, p, nil, fault.New(fault.Unavailable, "test", "not there")); err == nil {
				t.Fatal("the error is lost")
			}
		}
	}
	if pulls == 0 || pulls > 15 {
		t.Errorf("%d pulls in two minutes", pulls)
	}
}

// Expecting is true for a new incarnation, but not for long.
func TestExpecting_NewIncarnation(t *testing.T) {
	m := machine("n1")
	if m.Expecting(start) {
		t.Error("expecting news of no node")
	}
	know(m, start, "n2", "n3 failed")
	if !m.Expecting(start.Add(time.Second)) {
		t.Error("not expecting news of n2")
	}
	if m.Expecting(start.Add(4 * time.Second)) {
		t.Error("still expecting news of an incarnation that serves nothing")
	}
	other := machine("n2", "n1")
	if err := other.Serve([]records.Entry{app("orders")}); err != nil {
		t.Fatal(err)
	}
	hear(m, start, broadcasts(other, start))
	if m.Expecting(start.Add(time.Second)) {
		t.Error("expecting news of an incarnation that has announced its record")
	}
}
