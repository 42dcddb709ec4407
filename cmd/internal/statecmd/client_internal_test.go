package statecmd

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/cmd/internal/command"
	"github.com/quorate/quorate/internal/fault"
)

func TestClient_ChecksClockOfNode(t *testing.T) {
	start := time.Date(2030, 1, 2, 3, 4, 5, 900e6, time.UTC)
	date := start.Format(http.TimeFormat)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Date", date)
		_, _ = io.WriteString(w, "{}")
	}))
	defer s.Close()
	c := stateClient{&command.APIClient{Base: s.URL, Http: s.Client()}}
	for _, row := range []struct {
		ahead, took time.Duration // of this process; the duration of the request
		want        fault.Code    // empty = no error
	}{
		{0, 0, ""}, {5 * time.Second, 0, ""}, {-4 * time.Second, 0, ""},
		{5 * time.Second, time.Minute, ""}, {-5 * time.Second, time.Minute, ""}, // the node answered during the request
		{10 * time.Minute, 0, fault.Conflict}, {-10 * time.Minute, time.Second, fault.Conflict},
	} {
		times := []time.Time{start.Add(row.ahead), start.Add(row.ahead + row.took)}
		err := c.checkClock(t.Context(), func() time.Time {
			at := times[0]
			times = times[1:]
			return at
		})
		if row.want == "" && err != nil || row.want != "" && !fault.Is(err, row.want) {
			t.Errorf("ahead by %s, request of %s: %v", row.ahead, row.took, err)
		}
	}
	date = "yesterday"
	if err := c.checkClock(t.Context(), time.Now); err == nil {
		t.Error("an answer without a time was accepted")
	}
}

// TestClient_ReadsLongKeyOfStoreWithoutETags checks that a key which is read with a bulk request is found by its data.
func TestClient_ReadsLongKeyOfStoreWithoutETags(t *testing.T) {
	present, absent := strings.Repeat("p", maxPathKey+1), strings.Repeat("a", maxPathKey+1)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		answer := `[{"key":"` + absent + `"}]`
		if strings.Contains(string(body), present) {
			answer = `[{"key":"` + present + `","data":{"a":1}}]`
		}
		_, _ = io.WriteString(w, answer)
	}))
	defer s.Close()
	c := stateClient{&command.APIClient{Base: s.URL, Http: s.Client()}}
	if it, err := c.get(t.Context(), "statestore", present, readOptions{}); err != nil || !it.Found ||
		string(it.Value) != `{"a":1}` {
		t.Errorf("a present key: %+v, %v", it, err)
	}
	if it, err := c.get(t.Context(), "statestore", absent, readOptions{}); err != nil || it.Found {
		t.Errorf("an absent key: %+v, %v", it, err)
	}
}
