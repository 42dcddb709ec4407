package browsertest

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/chromedp/chromedp"
)

// page serves an empty page, whose origin differs from that of the API.
func page(t *testing.T) (origin string) {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// watch opens an EventSource, which collects what it receives in window.got.
func (b *browser) watch(n *node, query string) {
	b.t.Helper()
	b.run(chromedp.Evaluate(`window.got = []; window.ends = [];
		window.source = new EventSource("`+n.Base()+`/v1.0/watch/statestore?`+query+`");
		source.addEventListener("put", e => got.push(JSON.parse(e.data).value));
		source.addEventListener("error", e => ends.push(e.data || ""));`, nil))
}

// write saves a number and reports whether that succeeded. It may be repeated: the node writes each number once.
func (n *node) write(t *testing.T, number int) bool {
	t.Helper()
	value := strconv.Itoa(number)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, n.Base()+"/v1.0/state/statestore",
		strings.NewReader(`[{"key":"n-`+value+`","value":`+value+`,"options":{"consistency":"strong"}}]`))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Quorate-Request-Id", "number-"+value)
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
	return answer.StatusCode == http.StatusNoContent
}

// count returns the number of changes that the EventSource has received.
func (b *browser) count() (n int) {
	b.t.Helper()
	b.run(chromedp.Evaluate(`got.length`, &n))
	return n
}

// state returns whether the EventSource is connecting, open or closed.
func (b *browser) state() string {
	b.t.Helper()
	var n int
	b.run(chromedp.Evaluate(`source.readyState`, &n))
	return []string{"connecting", "open", "closed"}[n]
}

// The EventSource of a browser connects again by itself after its node was restarted, was killed, or has no quorum. It
// continues where it was: no change is missing or comes twice.
func TestEventSource_ContinuesByItself(t *testing.T) {
	origin := page(t)
	nodes := startCluster(t, "--allowed-origins", origin, "--app-id", "shop")
	watched, other := nodes[2], nodes[0]
	b := startBrowser(t)
	b.run(chromedp.Navigate(origin))
	b.watch(watched, "prefix=n-")
	wait(t, "the watch is open", func() bool { return b.state() == "open" })
	written := 0
	write := func(count int) {
		t.Helper()
		for range count {
			written++
			wait(t, "a write succeeds", func() bool { return other.write(t, written) })
		}
	}
	received := func(when string) {
		t.Helper()
		wait(t, "all changes have arrived after "+when, func() bool { return b.count() >= written })
	}
	write(20)
	received("the start")

	watched.Signal(syscall.SIGTERM)
	write(20)
	<-watched.Ended()
	write(20)
	watched.start(t)
	received("a restart")

	watched.Kill()
	write(20)
	watched.start(t)
	write(20)
	received("a kill")

	for _, n := range nodes {
		n.Kill()
	}
	watched.start(t) // it has no quorum
	postponed := func() (n int) {
		b.run(chromedp.Evaluate(`ends.filter(e => e.includes("not_ready")).length`, &n))
		return n
	}
	wait(t, "the watch was postponed", func() bool { return postponed() > 0 })
	nodes[0].start(t)
	nodes[1].start(t)
	wait(t, "the node is ready", func() bool { return status(other.Base()+"/readyz") == http.StatusOK })
	write(20)
	received("the loss of the quorum")

	var got []int
	b.run(chromedp.Evaluate(`got`, &got))
	want := make([]int, written)
	for i := range want {
		want[i] = i + 1
	}
	if !slices.Equal(got, want) {
		t.Errorf("the browser received %d changes, want each of %d once and in order:\n%v", len(got), len(want), got)
	}
}

// An EventSource whose position is no longer kept is closed: its page has to start again with a snapshot.
func TestEventSource_IsClosedWhenItsPositionIsNotKept(t *testing.T) {
	origin := page(t)
	n := startCluster(t, "--allowed-origins", origin, "--app-id", "shop")[0]
	b := startBrowser(t)
	b.run(chromedp.Navigate(origin))
	for what, query := range map[string]string{"a position before the history": "from=1", "a bad position": "from=x"} {
		for i := range 3 { // the first watch switches the history on
			n.save(t, fmt.Sprintf(`[{"key":"n-%d","value":%d}]`, i, i))
		}
		b.watch(n, query)
		wait(t, what+": the EventSource is closed", func() bool { return b.state() == "closed" })
	}
	b.watch(n, "snapshot=true")
	wait(t, "a snapshot opens", func() bool { return b.state() == "open" })
}

func TestEventSource_OfAnotherOriginIsRefused(t *testing.T) {
	n := startCluster(t, "--allowed-origins", page(t), "--app-id", "shop")[0]
	b := startBrowser(t)
	b.run(chromedp.Navigate(page(t)))
	b.watch(n, "from=0")
	wait(t, "the EventSource is closed", func() bool { return b.state() == "closed" })
}
