package due

import (
	"strconv"
	"strings"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/quorate/quorate/internal/fault"
	"github.com/quorate/quorate/internal/timezone"
)

// Bounds of schedules.
const (
	MaxSchedule = 256                   // bytes
	MinEvery    = 10 * time.Millisecond // shortest period
)

// maxTime is the latest time that a schedule can have: the end of the year 9999, in Unix milliseconds.
const maxTime = 253402300799999

const everyWord = "@every "

// Schedule says when the ticks of repeated work are due. The zero Schedule repeats nothing.
type Schedule struct {
	every  time.Duration // period; 0 = another form
	period Span          // period with months; zero = another form
	cron   cron.Schedule
}

func invalid(msg string) error { return fault.New(fault.Invalid, "due.Parse", msg) }

// ParseSchedule parses a schedule in one of three forms:
//
//   - six cron fields: second, minute, hour, day of month, month, day of week
//   - a word such as @daily
//   - "@every" with a Go duration, such as "@every 10s"
//
// The first two forms may have a prefix TZ= or CRON_TZ= with a time zone. The default time zone is UTC. ParseSchedule
// returns fault.Invalid for any other text, and for a schedule without a tick in the next five years.
func ParseSchedule(text string) (Schedule, error) {
	if len(text) > MaxSchedule {
		return Schedule{}, invalid("the schedule is longer than " + strconv.Itoa(MaxSchedule) + " bytes")
	}
	zone, rest, found := timezone.Cut(text)
	switch {
	case !found:
		text = "TZ=UTC " + text
	case rest == "":
		return Schedule{}, invalid("the time zone is followed by no schedule")
	case strings.HasPrefix(rest, everyWord):
		return Schedule{}, invalid("@every has no time zone (remove TZ=... or CRON_TZ=... before it)")
	default:
		if err := timezone.Check(zone); err != nil {
			return Schedule{}, invalid("its time zone " + fault.Text(err))
		}
	}
	if period, found := strings.CutPrefix(rest, everyWord); found {
		d, err := time.ParseDuration(strings.TrimSpace(period))
		if err != nil {
			return Schedule{}, invalid("@every is not followed by a duration such as 10s")
		}
		return Every(d)
	}
	parser := cron.NewParser(cron.Second | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow |
		cron.Descriptor)
	s, err := parser.Parse(text)
	if err != nil {
		return Schedule{}, invalid(err.Error() + ` (a schedule has six fields: second minute hour day month weekday; ` +
			`or is @every 10s, @hourly, @daily, @weekly, @monthly, @yearly)`)
	}
	if s.Next(time.Now()).IsZero() {
		return Schedule{}, invalid("the schedule has no tick in the next five years")
	}
	return Schedule{cron: s}, nil
}

// Every returns a schedule with the period d. It returns fault.Invalid if d is shorter than MinEvery.
func Every(d time.Duration) (Schedule, error) {
	if d < MinEvery {
		return Schedule{}, invalid("the period is shorter than " + MinEvery.String())
	}
	return Schedule{every: d}, nil
}

// parse parses a stored schedule: a text for ParseSchedule or ParsePeriod, or "" for a single tick.
func parse(text string) (Schedule, error) {
	switch {
	case text == "":
		return Schedule{}, nil
	case text[0] == 'P':
		return ParsePeriod(text)
	}
	return ParseSchedule(text)
}

// ParsePeriod parses a period of ISO 8601 such as PT10S or P1M, without a repetition count. Days have 24 hours. Months
// are calendar months in UTC. A period without years and months is the same as @every with that duration.
func ParsePeriod(text string) (Schedule, error) {
	s, err := ParseSpan(text)
	if err != nil {
		return Schedule{}, err
	}
	if s.Months == 0 {
		return Every(s.Rest)
	}
	return Schedule{period: s}, nil
}

// repeats reports whether there are ticks after the first one.
func (s *Schedule) repeats() bool { return s.every > 0 || s.period.Months > 0 || s.cron != nil }

// next returns the time of the first tick that is due later than the time in the parameter after. It returns false if
// there is no such tick. last is the time when the previous tick was due. If the schedule has a period, the result is
// last plus a multiple of the period. All times are in Unix milliseconds.
func (s *Schedule) next(last, after uint64) (at uint64, ok bool) {
	switch {
	case s.every > 0:
		at = nextEvery(last, after, uint64(s.every.Milliseconds())) //nolint:gosec // positive
	case s.period.Months > 0:
		for n := 1; at <= after; n++ {
			if at = s.period.after(last, n); at > maxTime {
				return 0, false
			}
		}
	case s.cron != nil:
		t := s.cron.Next(time.UnixMilli(int64(min(after, maxTime))).UTC()) //nolint:gosec // bounded
		if t.IsZero() {
			return 0, false
		}
		at = uint64(t.UnixMilli()) //nolint:gosec // after 1970
	default:
		return 0, false
	}
	return at, at <= maxTime
}

func nextEvery(last, after, every uint64) uint64 {
	if after < last {
		return last + every
	}
	return last + ((after-last)/every+1)*every
}

// Span is a length of time that may contain calendar months.
type Span struct {
	Months int // years included
	Rest   time.Duration
}

// after returns the time ms plus n times the span s. Both times are in Unix milliseconds. Months are calendar months in
// UTC.
func (s Span) after(ms uint64, n int) uint64 {
	t := time.UnixMilli(int64(min(ms, maxTime))).UTC() //nolint:gosec // bounded
	t = t.AddDate(0, s.Months*n, 0).Add(s.Rest * time.Duration(n))
	return uint64(max(t.UnixMilli(), 0)) //nolint:gosec // not negative
}

// ParseSpan parses a duration of ISO 8601, such as P1DT12H or PT0.5S, without a repetition count.
func ParseSpan(text string) (Span, error) {
	bad := invalid(strconv.Quote(shorten(text)) + " is no duration of ISO 8601 such as PT10S or P1DT12H")
	rest, found := strings.CutPrefix(text, "P")
	if !found || rest == "" || strings.HasSuffix(rest, "T") {
		return Span{}, bad
	}
	var s Span
	units, clock := "YMWD", false
	for rest != "" {
		if rest[0] == 'T' && !clock {
			units, clock, rest = "HMS", true, rest[1:]
			continue
		}
		i := strings.IndexFunc(rest, func(r rune) bool { return (r < '0' || r > '9') && r != '.' })
		if i < 1 {
			return Span{}, bad
		}
		u := strings.IndexByte(units, rest[i])
		if u < 0 {
			return Span{}, bad
		}
		if !s.add(rest[:i], rest[i], clock) {
			return Span{}, bad
		}
		units, rest = units[u+1:], rest[i+1:]
	}
	return s, nil
}

// add adds one component of a duration, such as 10M, to s. clock is true if the component follows the T of the
// duration. The unit M means minutes if clock is true, and months if clock is false. Only seconds may have a fraction.
// add returns false if the component is not valid.
func (s *Span) add(number string, unit byte, clock bool) bool {
	if unit == 'S' {
		d, err := time.ParseDuration(number + "s")
		s.Rest += d
		return err == nil && s.Rest >= 0
	}
	n, err := strconv.ParseUint(number, 10, 31)
	if err != nil {
		return false
	}
	day := uint64(24 * time.Hour)
	one := map[byte]uint64{'W': 7 * day, 'D': day, 'H': uint64(time.Hour), 'M': uint64(time.Minute)}[unit]
	switch {
	case unit == 'Y' && n <= 10_000:
		s.Months += 12 * int(n) //nolint:gosec // bounded
	case unit == 'M' && !clock && n <= 120_000:
		s.Months += int(n) //nolint:gosec // bounded
	case one > 0 && (unit != 'M' || clock) && n <= uint64(1<<63-1-s.Rest)/one: //nolint:gosec // not negative
		s.Rest += time.Duration(n * one) //nolint:gosec // bounded
	default:
		return false
	}
	return true
}

// ParseMoment parses a point in time and returns it in Unix milliseconds. text is a time in RFC 3339, or a duration
// (of Go or ISO 8601), which is added to base.
func ParseMoment(text string, base uint64) (uint64, error) {
	ms := uint64(0)
	if t, err := time.Parse(time.RFC3339, text); err == nil {
		if t.UnixMilli() < 0 {
			return 0, nil
		}
		ms = uint64(t.UnixMilli()) //nolint:gosec // not negative
		if t.Nanosecond()%int(time.Millisecond) != 0 {
			ms++ // never early
		}
	} else if strings.HasPrefix(text, "P") {
		s, err := ParseSpan(text)
		if err != nil {
			return 0, err
		}
		ms = s.after(base, 1)
	} else {
		d, err := time.ParseDuration(text)
		if err != nil || d < 0 {
			return 0, invalid(strconv.Quote(shorten(text)) + " is neither a time of RFC 3339 nor a duration such as " +
				"10s or PT10S")
		}
		ms = base + uint64((d + time.Millisecond - 1).Milliseconds()) //nolint:gosec // not negative
	}
	if ms > maxTime {
		return 0, invalid("the time lies after the year 9999")
	}
	return ms, nil
}

// maxShown is the maximum length in bytes of a text that an error quotes.
const maxShown = 64

func shorten(text string) string { return fault.Shorten(text, maxShown) }
