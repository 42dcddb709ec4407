// Package timezone loads time zones by names that mean the same zone on every node. It refuses a name such as Local,
// which means the zone of the host.
//
// It owns the rules for these names. It has no goroutines.
package timezone

import (
	"slices"
	"strings"
	"time"

	"github.com/quorate/quorate/internal/fault"
)

// Load returns the time zone with a name of the IANA database, such as UTC or Europe/Lisbon. The empty name means UTC.
// Load returns fault.Invalid if the name is unknown, or if Check refuses it. The message of the error begins with a
// verb, so that the caller can put the name before it.
func Load(name string) (*time.Location, error) {
	if err := Check(name); err != nil {
		return nil, err
	}
	in, err := time.LoadLocation(name)
	if err != nil {
		return nil, refused("is not the name of a time zone")
	}
	return in, nil
}

// Check returns fault.Invalid for a name that means the time zone of the host, such as Local. It does not read the
// database of time zones, so it accepts names that do not exist.
func Check(name string) error {
	if slices.Contains([]string{"local", "localtime", "posixrules"}, strings.ToLower(name)) {
		return refused("is the zone of the host, so nodes could disagree")
	}
	return nil
}

func refused(why string) error {
	return &fault.Error{Code: fault.Invalid, Op: "timezone.Load", Msg: why,
		Hint: "name a zone such as UTC or Europe/Lisbon"}
}

// Cut splits a cron schedule into the name of its time zone and the rest. The name follows the prefix TZ= or CRON_TZ=.
// For example, this schedule gives "Europe/Lisbon" and "0 0 * * * *":
//
//	CRON_TZ=Europe/Lisbon 0 0 * * * *
//
// If the schedule has no time zone, found is false and rest is the whole schedule.
func Cut(schedule string) (name, rest string, found bool) {
	for _, prefix := range []string{"TZ=", "CRON_TZ="} {
		if after, ok := strings.CutPrefix(schedule, prefix); ok {
			name, rest, _ = strings.Cut(after, " ")
			return name, strings.TrimSpace(rest), true
		}
	}
	return "", schedule, false
}
