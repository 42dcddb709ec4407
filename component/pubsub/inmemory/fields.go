package inmemory

import (
	"errors"
	"strconv"
	"time"

	"github.com/quorate/quorate/component"
)

// Metadata names.
const (
	metadataMaxBytes          = "maxBytes"
	metadataConcurrency       = "concurrency"
	metadataRedeliverInterval = "redeliverInterval"
)

const maxConcurrency = 1000

// Fields returns the metadata fields of the type.
func Fields() []component.Field {
	return []component.Field{
		{Name: metadataMaxBytes, Kind: component.Size, Default: "64Mi", Check: positive},
		{Name: metadataConcurrency, Kind: component.Int, Default: strconv.Itoa(DefaultConcurrency),
			Check: checkConcurrency},
		{Name: metadataRedeliverInterval, Kind: component.Duration, Default: "1s", Check: positiveDuration},
	}
}

func positive(text string) error {
	if n, err := component.ParseSize(text); err != nil || n == 0 {
		return errors.New("must be above 0")
	}
	return nil
}

func positiveDuration(text string) error {
	if d, err := time.ParseDuration(text); err != nil || d <= 0 {
		return errors.New("must be above 0")
	}
	return nil
}

func checkConcurrency(text string) error {
	if n, err := strconv.Atoi(text); err != nil || n < 1 || n > maxConcurrency {
		return errors.New("is not a number from 1 to 1000")
	}
	return nil
}

// OptionsFrom returns Options with the values of v. These must be values of the fields that Fields returns.
func OptionsFrom(v component.Values) Options {
	return Options{MaxBytes: v.Int(metadataMaxBytes), Concurrency: int(v.Int(metadataConcurrency)),
		RedeliverInterval: v.Duration(metadataRedeliverInterval)}
}
