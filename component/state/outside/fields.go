package outside

import (
	"errors"
	"strconv"
	"time"

	"github.com/quorate/quorate/component"
)

// ParseInterval parses a duration like Dapr. A whole number is in seconds.
func ParseInterval(text string) (time.Duration, error) {
	if n, err := strconv.ParseInt(text, 10, 32); err == nil {
		return time.Duration(n) * time.Second, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, errors.New("is neither a duration such as 30s or 1h nor a whole number of seconds")
	}
	return d, nil
}

// CheckInterval checks the text of a field that ParseInterval parses.
func CheckInterval(text string) error {
	_, err := ParseInterval(text)
	return err
}

// CheckTimeout is CheckInterval for a field that must be at least a second.
func CheckTimeout(text string) error {
	d, err := ParseInterval(text)
	if err == nil && d < time.Second {
		err = errors.New("is less than a second")
	}
	return err
}

// Interval returns the duration of a field that was checked.
func Interval(m component.Values, name string) time.Duration {
	d, _ := ParseInterval(m.Text(name))
	return d
}

// Number returns a check that a field is a whole number within bounds.
func Number(least, most int64) func(string) error {
	return func(text string) error {
		if n, err := strconv.ParseInt(text, 10, 64); err != nil || n < least || n > most {
			return errors.New("is not a whole number from " + strconv.FormatInt(least, 10) + " to " +
				strconv.FormatInt(most, 10))
		}
		return nil
	}
}
