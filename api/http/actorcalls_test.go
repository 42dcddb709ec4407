package http_test

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorate/quorate/api/actors"
	"github.com/quorate/quorate/api/apitest"
	"github.com/quorate/quorate/internal/admission"
)

// Slow methods of actors do not lower the memory of small requests, because only the duration of writes shows how busy
// the disk is.
func TestActorCall_DoesNotCountAsWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		b := admission.New(admission.Options{Bytes: 8 << 20})
		f.config.Requests = b
		f.config.Actors = apitest.ActorsElsewhere(f.App, func(context.Context) (actors.Answer, error) {
			<-time.After(time.Second)
			return actors.Answer{Status: http.StatusOK}, nil
		})
		face := newFace(t, f)
		body := strings.Repeat("x", 100<<10)
		for range 10 {
			var all sync.WaitGroup
			for range 4 {
				all.Go(func() {
					if w := call(t, face, "POST", "/v1.0/actors/Counter/a/method/add", body); w.Code != http.StatusOK {
						t.Errorf("%d %s", w.Code, w.Body)
					}
				})
			}
			all.Wait()
		}
		for i := range 4 {
			if !b.TryAcquire(admission.SmallRequest) {
				t.Fatalf("no room for request %d", i)
			}
		}
	})
}
