package http_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/quorate/quorate/internal/admission"
)

// A list of empty items needs much more memory when decoded, so it is counted before.
func TestConfiguration_NumberOfItemsIsLimited(t *testing.T) {
	f := newFixture(t)
	face := newFace(t, f)
	w := call(t, face, "POST", "/v1.0/configuration/items", "["+strings.Repeat("{},", 20_000)+"{}]")
	if w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), `"too_large"`) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// A request that sets a reminder or a timer reserves the memory that the decoded elements of its failure policy need.
func TestReminder_ReservesMemoryOfElements(t *testing.T) {
	f := newFixture(t)
	b := admission.New(admission.Options{Bytes: 8 << 20, Patience: 1, LargePatience: 1, Target: 1, Penalty: 1})
	f.config.Requests = b
	face := newFace(t, f)
	hold := b.Share()
	if !hold.TryAdd(6 << 20) {
		t.Fatal("the budget is not empty")
	}
	body := `{"dueTime":"1s","failure_policy":{` + strings.Repeat(`"x":0,`, 10_000) + `"drop":{}}}`
	for _, path := range []string{"/v1.0/actors/Counter/a/reminders/r", "/v1.0/actors/Counter/a/timers/t"} {
		if w := call(t, face, "POST", path, body); !strings.Contains(w.Body.String(), `"ERR_OVERLOADED"`) {
			t.Errorf("%s without memory: %d %s", path, w.Code, w.Body)
		}
	}
	hold.Release()
	for _, path := range []string{"/v1.0/actors/Counter/a/reminders/r", "/v1.0/actors/Counter/a/timers/t"} {
		if w := call(t, face, "POST", path, body); strings.Contains(w.Body.String(), `"ERR_OVERLOADED"`) {
			t.Errorf("%s with memory: %d %s", path, w.Code, w.Body)
		}
	}
}
