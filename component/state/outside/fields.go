package outside

import (
	"errors"
	"strconv"
	"time"

	"github.com/quorate/quorate/component"
)

// ParseInterval parses a duration as Dapr does. A whole number means seconds.
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

// CheckInterval returns an error if ParseInterval cannot parse text.
func CheckInterval(text string) error {
	_, err := ParseInterval(text)
	return err
}

// CheckTimeout returns an error unless text is a duration of at least a second, in the format of ParseInterval.
func CheckTimeout(text string) error {
	d, err := ParseInterval(text)
	if err == nil && d < time.Second {
		err = errors.New("is less than a second")
	}
	return err
}

// Interval returns the duration in the field with the given name. The field must have passed CheckInterval or
// CheckTimeout.
func Interval(m component.Values, name string) time.Duration {
	d, _ := ParseInterval(m.Text(name))
	return d
}

// Number returns a function for component.Field.Check. The function returns an error unless the text is a whole number
// n with least <= n <= most.
func Number(least, most int64) func(string) error {
	return func(text string) error {
		if n, err := strconv.ParseInt(text, 10, 64); err != nil || n < least || n > most {
			return errors.New("is not a whole number from " + strconv.FormatInt(least, 10) + " to " +
				strconv.FormatInt(most, 10))
		}
		return nil
	}
}
