package timezone_test

import (
	"testing"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/timezone"
)

func TestLoad_RefusesZoneOfHost(t *testing.T) {
	for _, name := range []string{"Local", "local", "localtime", "posixrules", "Atlantis", "../UTC"} {
		if in, err := timezone.Load(name); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v, %v", name, in, err)
		}
	}
	for _, name := range []string{"", "UTC", "Europe/Lisbon"} {
		if _, err := timezone.Load(name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestCut_SplitsSchedule(t *testing.T) {
	for schedule, want := range map[string][3]string{
		"0 0 * * * *":                        {"", "0 0 * * * *", ""},
		"TZ=UTC @daily":                      {"UTC", "@daily", "found"},
		"CRON_TZ=Europe/Lisbon  0 0 * * * *": {"Europe/Lisbon", "0 0 * * * *", "found"},
		"CRON_TZ=UTC":                        {"UTC", "", "found"},
		"TZ=":                                {"", "", "found"},
	} {
		name, rest, found := timezone.Cut(schedule)
		if name != want[0] || rest != want[1] || found != (want[2] != "") {
			t.Errorf("%q: %q, %q, %v", schedule, name, rest, found)
		}
	}
}
