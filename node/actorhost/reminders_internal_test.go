package actorhost

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/api"
	"github.com/quorate/quorate/api/actors"
	"github.com/quorate/quorate/discovery"
	"github.com/quorate/quorate/internal/fault"
)

func TestSchedule_ReadsThePeriodsOfSDKs(t *testing.T) {
	for period, want := range map[string]struct {
		text  string
		ticks uint64
	}{
		"":                {"", 0},
		"0s":              {"", 0},
		"PT0S":            {"", 0},
		"10s":             {"@every 10s", 0},
		"0h0m5s0ms0μs":    {"@every 0h0m5s0ms0μs", 0}, // Python
		"PT10S":           {"PT10S", 0},
		"P1Y2M3DT4H5M6S":  {"P1Y2M3DT4H5M6S", 0},
		"R5/PT10S":        {"PT10S", 5},
		"R/PT10S":         {"PT10S", 0},
		"@every 1h30m":    {"@every 1h30m", 0},
		"R0/PT1S":         {"error", 0},
		"R5":              {"error", 0},
		"R5/10s":          {"error", 0},
		"Rx/PT1S":         {"error", 0},
		"-1s":             {"error", 0},
		"P":               {"error", 0},
		"soon":            {"error", 0},
		"R4294967296/P1D": {"error", 0},
	} {
		text, ticks, err := schedule(period)
		if err != nil {
			if !fault.Is(err, fault.Invalid) || !strings.HasPrefix(fault.Text(err), "period: ") {
				t.Errorf("%q: %v", period, err)
			}
			text, ticks = "error", 0
		}
		if text != want.text || ticks != want.ticks {
			t.Errorf("%q is %q with %d ticks, want %q with %d", period, text, ticks, want.text, want.ticks)
		}
	}
}

func TestPlan_TicksOfATimer(t *testing.T) {
	for _, c := range []struct {
		timer actors.Reminder
		want  string
	}{
		{actors.Reminder{}, "0s"},
		{actors.Reminder{DueTime: "5s"}, "5s"},
		{actors.Reminder{DueTime: "5s", Period: "R3/PT2S"}, "5s 2s 2s"},
		{actors.Reminder{Period: "10ms", TTL: "25ms"}, "0s 10ms 10ms"},
		{actors.Reminder{Period: "1m", TTL: "3m"}, "0s 1m0s 1m0s 1m0s"},
		{actors.Reminder{DueTime: "2000-01-01T00:00:00Z", Period: "R2/P1M"}, "0s 744h0m0s"},
		{actors.Reminder{DueTime: "1h", TTL: "2000-01-01T00:01:00Z"}, ""},
		{actors.Reminder{DueTime: "P1000Y"}, "1752000h0m0s"}, // the longest wait
	} {
		synctest.Test(t, func(t *testing.T) { // the clock of synctest begins at 2000-01-01
			p, err := newPlan(&c.timer)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for wait, ok := p.Next(); ok && len(got) < 5; wait, ok = p.Next() {
				got = append(got, wait.String())
				if wait < 1000*time.Hour {
					<-time.After(wait)
				}
			}
			if text := strings.Join(got, " "); text != c.want {
				t.Errorf("%+v ticks after %q, want %q", c.timer, text, c.want)
			}
		})
	}
}

// A tick that takes longer than the period counts for all that were due in the meantime.
func TestPlan_MissedTicksAreOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, err := newPlan(&actors.Reminder{Period: "10s"})
		if err != nil {
			t.Fatal(err)
		}
		_, _ = p.Next()
		<-time.After(35 * time.Second)
		if wait, ok := p.Next(); wait != 5*time.Second || !ok {
			t.Errorf("after 35 s of work on a tick the next one is in %v", wait)
		}
	})
}

func TestShownPeriod(t *testing.T) {
	for period, want := range map[string]string{
		"": "", "0s": "", "PT0S": "", "1s": "@every 1s", "0h0m5s0ms0μs": "@every 5s", "@every 60s": "@every 1m0s",
		"PT1S": "@every 1s", "R5/PT10S": "@every 10s", "P1DT1H": "@every 25h0m0s", "P1M": "P1M", "R2/P1Y": "R2/P1Y",
	} {
		if got := shownPeriod(period); got != want {
			t.Errorf("%q is shown as %q, want %q", period, got, want)
		}
	}
}

func TestReminder_KeepsTheWordsOfItsRegistration(t *testing.T) {
	a := api.Actor{Type: "T", ID: "1"}
	if _, err := reminderOf(workName(a, "a|b"), []byte(`{`)); !fault.Is(err, fault.Corrupt) {
		t.Errorf("a damaged record: %v", err)
	}
	got, err := reminderOf(workName(a, "a|b"), []byte(`{"dueTime":"PT1S","period":"R2/PT5S","data":"x"}`))
	if err != nil || got.Actor != a || got.Name != "a|b" || got.DueTime != "PT1S" || got.Period != "@every 5s" ||
		string(got.Data) != `"x"` {
		t.Errorf("%+v %v", got, err)
	}
}

// Ticks in progress at an unhealthy instance do not reduce the room of the other instances.
func TestRoom_CountsTicksAtUnhealthyInstancesInAddition(t *testing.T) {
	for _, c := range []struct {
		name  string
		a, b  bool // healthy
		ticks map[string]int
		want  int
	}{
		{"idle", true, true, map[string]int{}, 256},
		{"healthy and busy", true, true, map[string]int{"a": 128, "b": 5}, 256},
		{"one unhealthy and hung", false, true, map[string]int{"a": 128, "b": 5}, 256},
		{"one gone and hung", false, true, map[string]int{"a": 3, "gone": 7}, 138},
		{"all unhealthy", false, false, map[string]int{"a": 128}, 0},
	} {
		instances := []discovery.Instance{{Node: "a", Healthy: c.a}, {Node: "b", Healthy: c.b}}
		if got := room(instances, c.ticks); got != c.want {
			t.Errorf("%s: room for %d ticks, want %d", c.name, got, c.want)
		}
	}
}
