package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// fakeBroker passes each message to an inbox, in a CloudEvent, after the answer to the publisher.
type fakeBroker struct {
	inbox  *inbox
	refuse bool

	mu     sync.Mutex
	topics []string
}

func (f *fakeBroker) publish(_ context.Context, topic string, message []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.topics = append(f.topics, topic)
	if f.refuse {
		return errors.New("the topic is full")
	}
	if topic == handledTopic {
		go func() {
			body := fmt.Sprintf(`{"id":"1","data":%s}`, message)
			f.inbox.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/"+topic,
				strings.NewReader(body)))
		}()
	}
	return nil
}

func newFakeBroker() (*broker, *fakeBroker) {
	f := &fakeBroker{inbox: newInbox()}
	return &broker{processes: &processes{}, title: "fake", inbox: f.inbox, closing: func() {},
		connect: func(n int) ([]publisher, error) { return slices.Repeat([]publisher{f}, n), nil }}, f
}

func TestBroker_MeasuresEachOperation(t *testing.T) {
	b, f := newFakeBroker()
	if _, err := b.delivering(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	for op, topic := range map[operation]string{publish: storedTopic, publishDeliver: handledTopic} {
		f.topics = nil
		var got figures
		if err := load(t.Context(), &got, b, op, 3, 1, strings.Repeat("v", 256), 20*time.Millisecond); err != nil {
			t.Fatalf("%s: %v", op, err)
		}
		// the topics include those of the warm-up
		if got.count == 0 || len(f.topics) <= got.count || len(slices.Compact(f.topics)) != 1 || f.topics[0] != topic {
			t.Errorf("%s: %d measured, %d published to %s", op, got.count, len(f.topics), f.topics[0])
		}
	}
	if n := len(f.inbox.waiting); n != 0 {
		t.Errorf("%d messages are still expected", n)
	}
}

func TestBroker_ReportsARefusedMessage(t *testing.T) {
	b, f := newFakeBroker()
	f.refuse = true
	var got figures
	err := b.measure(t.Context(), &got, publishDeliver, 2, "", time.Minute)
	if err == nil || !strings.Contains(err.Error(), "full") || len(f.inbox.waiting) != 0 {
		t.Errorf("%v, %d still expected", err, len(f.inbox.waiting))
	}
}

func TestBroker_NoticesAMessageThatDoesNotArrive(t *testing.T) {
	elsewhere := func(ctx context.Context) error {
		b, f := newFakeBroker()
		f.inbox = newInbox() // another inbox gets the messages, so the inbox of b waits in vain
		err := b.deliver(ctx, f, 16)
		if n := len(b.inbox.waiting); n != 0 {
			t.Errorf("%d messages are still expected", n)
		}
		return err
	}
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		err := elsewhere(t.Context())
		if took := time.Since(begin); err == nil || !strings.Contains(err.Error(), "has not arrived after 1m0s") ||
			took != arrivalTime {
			t.Errorf("after %s: %v", took, err)
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := elsewhere(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
}

func TestMessage_HasItsSizeAndNumber(t *testing.T) {
	for _, c := range []struct{ number, size, want int }{{7, 256, 256}, {1_000_000, 0, 18}} {
		m := message(c.number, c.size)
		if len(m) != c.want || m[0] != '"' || m[len(m)-1] != '"' {
			t.Errorf("%s has %d bytes, want %d", m, len(m), c.want)
		}
		if got, ok := messageNumber(fmt.Appendf(nil, `{"source":"app","data":%s}`, m)); !ok || got != c.number {
			t.Errorf("%d, %t, want %d", got, ok, c.number)
		}
	}
	for _, body := range []string{"", `"message:x:"`, `{"data":1}`} {
		if _, ok := messageNumber([]byte(body)); ok {
			t.Errorf("%s has a number", body)
		}
	}
}

func TestInbox_ListsItsSubscription(t *testing.T) {
	w := httptest.NewRecorder()
	newInbox().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/dapr/subscribe", http.NoBody))
	if got, want := w.Body.String(), `[{"pubsubname":"pubsub","topic":"handled","route":"/handled"}]`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestJetStream_DeliversEveryMessage(t *testing.T) {
	ports, err := freePorts(2)
	if err != nil {
		t.Fatal(err)
	}
	files, err := writeNATSConfigs(t.TempDir(), ports[:1], ports[1:], true)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- serveNATS(ctx, files[0]) }()
	j := &jetStream{urls: []string{"nats://127.0.0.1:" + ports[0]}}
	b := &broker{processes: &processes{}, title: "js", inbox: newInbox(), connect: j.connect, closing: j.end}
	if err := until(ctx, func() error { return j.subscribe(ctx, b.inbox, 1) }); err != nil {
		t.Error(err)
	} else if _, err := b.delivering(ctx, 1); err != nil {
		t.Error(err)
	}
	var got figures
	if err := load(ctx, &got, b, publishDeliver, 9, 1, strings.Repeat("v", 256), time.Millisecond); err != nil ||
		got.count < 9 || len(j.conns) != 2 {
		t.Errorf("%d messages over %d connections, %v", got.count, len(j.conns), err)
	}
	b.end()
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestTopics_LeaveOutMissingPrograms(t *testing.T) {
	s, err := parse([]string{"-daprd", "no-such-daprd", "-redis", "/bin/true"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	var missing *missingError
	if _, err := topicsDaprd(t.Context(), s, t.TempDir()); !errors.As(err, &missing) || missing.name != "daprd" {
		t.Errorf("%v", err)
	}
	if st, err := topicsQuorate("beside", 1)(t.Context(), s, t.TempDir()); st != nil || err != nil {
		t.Errorf("another program is started though none is given: %v, %v", st, err)
	}
}
