package topics

import (
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/quorate/quorate/component"
)

// Metadata names of the component.
const (
	metadataRetention   = "retention"
	metadataMaxBytes    = "maxBytes"
	metadataWindow      = "deduplicationWindow"
	metadataConcurrency = "concurrency"   // also metadata of a subscription
	metadataInitial     = "initialOffset" // also metadata of a subscription
	metadataRedeliver   = "redeliverInterval"
	metadataGroupTTL    = "groupTTL" // also metadata of a subscription

	oldest = "oldest"
	newest = "newest"
)

// Fields returns the metadata fields of the component.
func Fields() []component.Field {
	const day = 24 * time.Hour
	return []component.Field{
		{Name: metadataRetention, Kind: component.Duration, Default: "24h", Check: between(time.Second, 3650*day)},
		{Name: metadataMaxBytes, Kind: component.Size, Default: "1Gi", Check: checkSize},
		{Name: metadataWindow, Kind: component.Duration, Default: "0s", Check: between(0, 7*day)},
		{Name: metadataConcurrency, Kind: component.Int, Default: strconv.Itoa(defaultConcurrency),
			Check: checkConcurrency},
		{Name: metadataInitial, Default: oldest, Check: checkInitial},
		{Name: metadataRedeliver, Kind: component.Duration, Default: "1s",
			Check: between(time.Millisecond, lastBackoff)},
		{Name: metadataGroupTTL, Kind: component.Duration, Default: "0s", Check: checkGroupTTL},
	}
}

func between(least, most time.Duration) func(string) error {
	return func(text string) error {
		if d, err := time.ParseDuration(text); err != nil || d < least || d > most {
			return fmt.Errorf("is not a duration from %s to %s", least, most)
		}
		return nil
	}
}

// checkGroupTTL returns an error unless text is 0s, or a duration from a minute to maxGroupTTL in whole milliseconds.
// Records store the time to live in milliseconds.
func checkGroupTTL(text string) error {
	d, err := time.ParseDuration(text)
	if err != nil || d != 0 && (d < time.Minute || d > maxGroupTTL) || d%time.Millisecond != 0 {
		return fmt.Errorf("is neither 0s nor a duration from %s to %s in whole milliseconds", time.Minute, maxGroupTTL)
	}
	return nil
}

func checkSize(text string) error {
	if n, err := component.ParseSize(text); err != nil || n <= 0 {
		return errors.New("must be above 0")
	}
	return nil
}

func checkConcurrency(text string) error {
	if n, err := strconv.Atoi(text); err != nil || n < 1 || n > maxConcurrency {
		return fmt.Errorf("is not a number from 1 to %d", maxConcurrency)
	}
	return nil
}

func checkInitial(text string) error {
	if text != oldest && text != newest {
		return errors.New("must be " + oldest + " or " + newest)
	}
	return nil
}

// OptionsFrom returns the options of a broker from the values of its metadata fields (see Fields).
func OptionsFrom(v component.Values, log *slog.Logger) BrokerOptions {
	return BrokerOptions{
		Policy: Policy{Retention: v.Duration(metadataRetention), MaxBytes: v.Int(metadataMaxBytes)},
		Window: v.Duration(metadataWindow), Concurrency: int(v.Int(metadataConcurrency)),
		GroupTTL: v.Duration(metadataGroupTTL),
		Backoff:  v.Duration(metadataRedeliver), Newest: v.Text(metadataInitial) == newest, Logger: log,
	}
}
