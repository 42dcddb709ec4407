package pluggable

import (
	"context"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	components "github.com/dapr/dapr/pkg/proto/components/v1"

	"github.com/quorate/quorate/component/pubsub"
	"github.com/quorate/quorate/internal/testutil"
)

// script is a stream that delivers the messages of a list and then ends.
type script struct {
	components.PubSub_PullMessagesClient
	ctx  context.Context
	list []*components.PullMessagesResponse
	read int
}

func (s *script) Context() context.Context { return s.ctx }

func (s *script) Recv() (*components.PullMessagesResponse, error) {
	if s.read == len(s.list) {
		return nil, io.EOF
	}
	s.read++
	return s.list[s.read-1], nil
}

func (s *script) Send(*components.PullMessagesRequest) error { return nil }

// scripted returns a subscription and a stream. The stream has a message for each id.
func scripted(ctx context.Context, unsettled int, data []byte, ids ...string) (*member, *pullStream, *script) {
	b := &broker{link: &link{options: Options{Name: "mine", Type: "pubsub.x", Logger: slog.New(slog.DiscardHandler)}}}
	m := newMember(b, pubsub.SubscribeRequest{Topic: "orders", Group: "shop", Unsettled: unsettled})
	s := &script{ctx: ctx}
	for _, id := range ids {
		s.list = append(s.list, &components.PullMessagesResponse{Id: id, Data: data})
	}
	return m, &pullStream{duplex: s, cancel: m.end, pending: map[string]bool{}}, s
}

// TestReceive_ReportsAcceptedMessages checks when a stream counts as useful. After such a stream, the next stream is
// opened without a growing pause.
func TestReceive_ReportsAcceptedMessages(t *testing.T) {
	for want, ids := range map[bool][]string{true: {"1", ""}, false: {"", "1"}} {
		m, p, _ := scripted(t.Context(), 0, nil, ids...)
		if some, err := m.reader.read(p); some != want || err == nil {
			t.Errorf("messages %q: %t, %v", ids, some, err)
		}
		m.end()
	}
}

// TestReceive_Bounds checks how many messages a subscription reads while no message is settled. When a message is
// settled, the subscription reads one more.
func TestReceive_Bounds(t *testing.T) {
	ids := make([]string, 1100)
	for n := range ids {
		ids[n] = strconv.Itoa(n)
	}
	for name, c := range map[string]struct{ unsettled, bytes, want int }{
		"default":          {0, 10, maxEvents},
		"a batch":          {100, 10, 100},
		"the largest":      {5000, 10, maxDeliveries},
		"bytes":            {5000, 1 << 20, 16},
		"one large":        {5000, 15 << 20, 2},
		"larger than that": {5000, 20 << 20, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, end := context.WithCancel(t.Context())
				m, p, s := scripted(ctx, c.unsettled, make([]byte, c.bytes), ids...)
				defer m.end()
				go func() { _, _ = m.reader.read(p) }() // the read ends with ctx
				defer end()
				for _, outcome := range []pubsub.Outcome{pubsub.Acknowledged, pubsub.Failed, pubsub.Released} {
					synctest.Wait()
					if s.read != c.want {
						t.Fatalf("%d messages were read, want %d", s.read, c.want)
					}
					list, err := m.Receive(ctx, 1)
					testutil.Must(t, err)
					testutil.Must(t, m.Settle(ctx, &list[0], outcome))
					c.want++
				}
				end()
				synctest.Wait()
				m.ended(p)
				if m.bytes != 0 || len(m.held) != 0 {
					t.Errorf("%d bytes of %d deliveries stay after the end of the stream", m.bytes, len(m.held))
				}
			})
		})
	}
}

// TestSettle_KeepsNoLongIDs fails a message with the longest id twice, and also a message with a longer id.
func TestSettle_KeepsNoLongIDs(t *testing.T) {
	for size, want := range map[int]int{maxMessageID: 2, maxMessageID + 1: 1} {
		m, p, s := scripted(t.Context(), 0, nil, "1", "2")
		for _, in := range s.list {
			in.Metadata = map[string]string{metaID: strings.Repeat("x", size)}
			testutil.Must(t, m.accept(p, in))
			list, err := m.Receive(t.Context(), 1)
			testutil.Must(t, err)
			if in == s.list[1] && list[0].Attempt != want {
				t.Errorf("an id with %d bytes: attempt %d, want %d", size, list[0].Attempt, want)
			}
			testutil.Must(t, m.Settle(t.Context(), &list[0], pubsub.Failed))
		}
		if kept := len(m.attempts); kept != want-1 {
			t.Errorf("an id with %d bytes: %d ids are kept", size, kept)
		}
		m.end()
	}
}

// TestSettle_BoundsAttempts fails more messages than a subscription counts.
func TestSettle_BoundsAttempts(t *testing.T) {
	m, p, _ := scripted(t.Context(), 0, nil)
	defer m.end()
	most := 0
	for n := range maxAttempts + 2 {
		testutil.Must(t, m.accept(p, &components.PullMessagesResponse{Id: strconv.Itoa(n)}))
		list, err := m.Receive(t.Context(), 1)
		testutil.Must(t, err)
		testutil.Must(t, m.Settle(t.Context(), &list[0], pubsub.Failed))
		most = max(most, len(m.attempts))
	}
	if most != maxAttempts || len(m.attempts) != 2 {
		t.Errorf("at most %d messages were counted, want %d; %d are left", most, maxAttempts, len(m.attempts))
	}
}
