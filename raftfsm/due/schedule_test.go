package due_test

import (
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/raftfsm/due"
)

func TestResolve_FirstTickAndTTL(t *testing.T) {
	at := func(text string) uint64 {
		m, err := time.Parse(time.RFC3339Nano, text)
		if err != nil {
			t.Fatal(err)
		}
		return uint64(m.UnixMilli())
	}
	now := at("2026-03-28T12:00:00.5Z") // a Saturday; Berlin changes to summer time on the next day
	for _, c := range []struct {
		schedule, due, ttl string
		first, until       string // empty until = never
	}{
		{schedule: "@every 90s", first: "2026-03-28T12:01:30.5Z"},
		{schedule: "@every 250ms", first: "2026-03-28T12:00:00.75Z"},
		{schedule: "*/10 * * * * *", first: "2026-03-28T12:00:10Z"},
		{schedule: "0 30 2 * jan,apr MON-FRI", first: "2026-04-01T02:30:00Z"},
		{schedule: "@hourly", first: "2026-03-28T13:00:00Z"},
		{schedule: "@daily", first: "2026-03-29T00:00:00Z"},
		{schedule: "@midnight", first: "2026-03-29T00:00:00Z"},
		{schedule: "@weekly", first: "2026-03-29T00:00:00Z"},
		{schedule: "@monthly", first: "2026-04-01T00:00:00Z"},
		{schedule: "@yearly", first: "2027-01-01T00:00:00Z"},
		{schedule: "@annually", first: "2027-01-01T00:00:00Z"},
		{schedule: "TZ=Europe/Berlin 0 0 12 * * *", first: "2026-03-29T10:00:00Z"},
		{schedule: "CRON_TZ=Europe/Berlin 0 0 12 * * *", first: "2026-03-29T10:00:00Z"},
		{schedule: "PT10S", first: "2026-03-28T12:00:10.5Z"},
		{schedule: "P1M", first: "2026-04-28T12:00:00.5Z"},
		{due: "10s", first: "2026-03-28T12:00:10.5Z"},
		{due: "0h0m5s0ms0μs", first: "2026-03-28T12:00:05.5Z"},
		{due: "PT0.5S", first: "2026-03-28T12:00:01Z"},
		{due: "P1Y2M3W4DT5H6M7S", first: "2027-06-22T17:06:07.5Z"},
		{due: "2026-04-01T00:00:00+02:00", first: "2026-03-31T22:00:00Z"},
		{due: "2026-04-01T00:00:00.0001Z", first: "2026-04-01T00:00:00.001Z"},
		{schedule: "@every 1h", due: "10m", ttl: "2h", first: "2026-03-28T12:10:00.5Z",
			until: "2026-03-28T14:10:00.5Z"},
		{schedule: "@every 1h", ttl: "PT2H", first: "2026-03-28T13:00:00.5Z", until: "2026-03-28T14:00:00.5Z"},
	} {
		p := due.Put{Name: "a", Due: c.due, TTL: c.ttl, Spec: due.Spec{Schedule: c.schedule}}
		w, err := p.Resolve(now)
		if err != nil {
			t.Errorf("%+v: %v", c, err)
			continue
		}
		if w.State.At != at(c.first) {
			t.Errorf("%q %q: the first tick is at %s, want %s", c.schedule, c.due,
				time.UnixMilli(int64(w.State.At)).UTC().Format(time.RFC3339Nano), c.first)
		}
		if c.until != "" && w.Spec.Until != at(c.until) {
			t.Errorf("%q ends at %d, want %s", c.schedule, w.Spec.Until, c.until)
		}
	}
}

func TestResolve_RefusesBadGrammar(t *testing.T) {
	for _, c := range []struct{ schedule, due, ttl, want string }{
		{schedule: "* * * * *", want: "schedule: "}, // five fields
		{schedule: "2026-01-01T00:00:00Z", want: "schedule: "},
		{schedule: "@every 9ms", want: "schedule: "},
		{schedule: "@every", want: "schedule: "},
		{schedule: "@reboot", want: "schedule: "},
		{schedule: "TZ=0", want: "schedule: "},
		{schedule: "TZ=Europe/Rome @every 90s", want: "schedule: @every has no time zone"},
		{schedule: "CRON_TZ=Europe/Rome  @every 90s", want: "schedule: @every has no time zone"},
		{schedule: "TZ=Nowhere/Land 0 0 0 * * *", want: "schedule: "},
		{schedule: "TZ=Local 0 0 0 * * *", want: "schedule: its time zone is the zone of the host"},
		{schedule: "0 0 0 30 2 *", want: "schedule: "},
		{schedule: "R5/PT10S", want: "schedule: "},
		{due: "-5s", want: "dueTime: "},
		{due: "soon", want: "dueTime: "},
		{due: "R5/PT10S", want: "dueTime: "},
		{due: "P", want: "dueTime: "},
		{due: "PT", want: "dueTime: "},
		{due: "P1S", want: "dueTime: "},
		{due: "PT1S1H", want: "dueTime: "},
		{due: "P99999Y", want: "dueTime: "},
		{schedule: "@daily", ttl: "x", want: "ttl: "},
		{schedule: "@daily", ttl: "2020-01-01T00:00:00Z", want: "ttl: "},
	} {
		p := due.Put{Name: "a", Due: c.due, TTL: c.ttl, Spec: due.Spec{Schedule: c.schedule}}
		_, err := p.Resolve(begin)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
