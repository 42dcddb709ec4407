package pubsub

import (
	"context"
	"log/slog"
	"runtime"
	"strconv"
	"sync"
	"testing"
)

func TestUpdate_ChangesDeclarationsAndSubscriptionsAtOnce(t *testing.T) {
	s := NewSubscriber(SubscriberOptions{Logger: slog.New(slog.DiscardHandler)})
	_ = s.Close(context.Background()) // so that Update does not wait for run
	end := make(chan struct{})
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for {
				select {
				case <-end:
					return
				default:
				}
				s.mu.Lock()
				declared, subs := len(s.declared), len(s.subs)
				runtime.Gosched() // so that the other goroutines wait for the lock
				s.mu.Unlock()
				if declared != subs {
					t.Errorf("%d subscriptions are declared, and %d are in effect", declared, subs)
					return
				}
			}
		})
	}
	var declared []Definition
	for i := range 200 {
		declared = append(declared, Definition{PubSub: "messages", Topic: strconv.Itoa(i), Default: "/"})
		s.Update(t.Context(), declared)
	}
	close(end)
	readers.Wait()
}
