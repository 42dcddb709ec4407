package mongodb

import (
	"context"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/quorate/quorate/component/state/statetest"
	"github.com/quorate/quorate/internal/fault"
)

// The driver cancels calls if the handshake of another connection fails, for example because of a certificate.
func TestStore_RepeatsAGreetingThatTheDriverCanceled(t *testing.T) {
	s := &Store{settings: settings{client: options.Client().ApplyURI("mongodb://db:27017")}}
	reason := fault.New(fault.Unavailable, "mongodb.Open", "the certificate of MongoDB is not trusted")
	for canceled, c := range map[int]struct {
		calls int
		want  string
	}{0: {1, "not trusted"}, 1: {2, "not trusted"}, 2: {3, "not trusted"}, 3: {3, "the driver has closed"}} {
		calls := 0
		_, err := s.repeated(t.Context(), func(context.Context) (greeting, error) {
			if calls++; calls <= canceled {
				return greeting{}, s.failed("mongodb.Open", "", context.Canceled, reading)
			}
			return greeting{}, reason
		})
		statetest.WantFault(t, err, fault.Unavailable, c.want)
		if calls != c.calls || fault.HintOf(err) != "" || strings.Contains(err.Error(), "in time") {
			t.Errorf("after %d calls: %v, hint %q", calls, err, fault.HintOf(err))
		}
	}
}

func TestStore_RepeatsNoGreetingThatTheCallerCanceled(t *testing.T) {
	s := &Store{settings: settings{client: options.Client().ApplyURI("mongodb://db:27017")}}
	ctx, cancel := context.WithCancel(t.Context())
	calls := 0
	_, err := s.repeated(ctx, func(ctx context.Context) (greeting, error) {
		calls++
		cancel()
		return greeting{}, s.failed("mongodb.Open", "", ctx.Err(), reading)
	})
	if calls != 1 || !fault.Is(err, fault.Timeout) {
		t.Errorf("after %d calls: %v", calls, err)
	}
}
