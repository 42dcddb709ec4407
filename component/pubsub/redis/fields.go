package redis

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strconv"
	"time"

	"github.com/quorate/quorate/component"
	redisstate "github.com/quorate/quorate/component/state/redis"
)

// Metadata names in addition to those of the client.
const (
	metadataProcessingTimeout = "processingTimeout"
	metadataRedeliverInterval = "redeliverInterval"
	metadataQueueDepth        = "queueDepth"
	metadataConcurrency       = "concurrency"
	metadataMaxLen            = "maxLenApprox"
	metadataStreamTTL         = "streamTTL"
)

const (
	maxConcurrency = 1000
	maxQueueDepth  = 10_000
	minInterval    = 10 * time.Millisecond // shorter intervals would put a high load on Redis
	maxInterval    = 10 * 365 * 24 * time.Hour
)

// Fields returns the metadata fields of the component type. Names and defaults are the same as in Dapr.
func Fields() []component.Field {
	return append(redisstate.ClientFields(),
		component.Field{Name: metadataProcessingTimeout, Default: "60s", Check: checkInterval},
		component.Field{Name: metadataRedeliverInterval, Default: "15s", Check: checkInterval},
		component.Field{Name: metadataQueueDepth, Kind: component.Int, Default: "100", Check: number(1, maxQueueDepth)},
		component.Field{Name: metadataConcurrency, Kind: component.Int, Default: "10",
			Check: number(1, maxConcurrency)},
		component.Field{Name: metadataMaxLen, Kind: component.Int, Check: number(0, math.MaxInt64)},
		component.Field{Name: metadataStreamTTL, Check: checkInterval}, // 0 = no limit
		component.Field{Name: "ackOnError",
			Refused: "a failed message is never acknowledged; remove it, and give subscriptions a dead-letter topic"},
	)
}

func checkInterval(text string) error {
	d, err := redisstate.ParseInterval(text)
	switch {
	case err != nil || d < 0 || d > maxInterval:
		return errors.New("is neither a duration such as 500ms or 5s, nor milliseconds")
	case d > 0 && d < minInterval:
		return errors.New("is neither 0 nor at least " + minInterval.String())
	}
	return nil
}

func number(least, most int64) func(string) error {
	return func(text string) error {
		if n, err := strconv.ParseInt(text, 10, 64); err != nil || n < least || n > most {
			return fmt.Errorf("is not a whole number from %d to %d", least, most)
		}
		return nil
	}
}

// settings are the checked metadata of the broker.
type settings struct {
	processing  time.Duration // idle time after which a pending message has no member any more; 0 = never
	redeliver   time.Duration // interval of the search for such messages; 0 = no search
	depth       int           // messages that a group holds ready for its members
	concurrency int           // deliveries that a member may have without settling them
	maxLen      int64         // approximate maximum number of entries of a stream; 0 = no limit
	streamTTL   time.Duration // approximate maximum age of the entries of a stream; 0 = no limit
}

func read(v component.Values) settings {
	interval := func(name string) time.Duration {
		d, _ := redisstate.ParseInterval(v.Text(name)) // checked
		return max(d, 0)
	}
	return settings{
		processing: interval(metadataProcessingTimeout), redeliver: interval(metadataRedeliverInterval),
		depth: int(v.Int(metadataQueueDepth)), concurrency: int(v.Int(metadataConcurrency)),
		maxLen: v.Int(metadataMaxLen), streamTTL: interval(metadataStreamTTL),
	}
}

// redelivers reports whether pending messages are delivered again.
func (s *settings) redelivers() bool { return s.processing > 0 && s.redeliver > 0 }

func (s *settings) warn(log *slog.Logger) {
	if !s.redelivers() {
		log.Warn("redelivery is switched off: a message that fails, or whose node ends, is not delivered again",
			"hint", "set processingTimeout and redeliverInterval above 0")
	}
	if s.maxLen > 0 && s.streamTTL > 0 {
		log.Warn("streamTTL has no effect beside maxLenApprox, as in Dapr", "hint", "remove one of them")
	}
}
