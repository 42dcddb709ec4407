package http_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quorate/quorate/api"
	apihttp "github.com/quorate/quorate/api/http"
	"github.com/quorate/quorate/api/http/httpserver"
	"github.com/quorate/quorate/api/http/servertest"
	"github.com/quorate/quorate/internal/testutil"
)

// gathered returns the sum of the gauges and counters with a name and a label value, or 0 if there are none.
func gathered(t *testing.T, reg *prometheus.Registry, name, label string) (value float64) {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if f.GetName() == name && l.GetValue() == label {
					value += m.GetGauge().GetValue() + m.GetCounter().GetValue()
				}
			}
		}
	}
	return value
}

// A reader whose process is stopped takes nothing from its socket. Its watch must end after WriteStall, so that the
// node keeps no goroutine and no memory for it. Other readers must not be delayed. When the stopped reader runs again,
// it continues from its last position and misses nothing.
func TestWatch_StoppedReaderIsCutAndResumes(t *testing.T) {
	const writes = 80
	f, watches, reg := newFixture(t), api.NewWatches(), prometheus.NewRegistry()
	reg.MustRegister(watches.Collectors()...)
	f.config.State.Observe(watches)
	face, err := apihttp.New(f.config)
	if err != nil {
		t.Fatal(err)
	}
	server := servertest.Open(t, httpserver.Config{WriteStall: 300 * time.Millisecond, Handler: face})
	address := server.Addr().String()
	base := "http://" + address

	stopped, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer stopped.Close()
	_ = stopped.(*net.TCPConn).SetReadBuffer(64 << 10) // if this fails, more is sent before the stall
	if _, err := io.WriteString(stopped, "GET /v1.0/watch/orders HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	answer, err := http.ReadResponse(bufio.NewReaderSize(stopped, 4096), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	lines := bufio.NewReader(answer.Body)
	if first, err := lines.ReadString('\n'); err != nil || !strings.Contains(first, "bookmark") {
		t.Fatalf("%q, %v", first, err)
	}
	other := openTap(t, base+"/v1.0/watch/orders")
	other.want(`{"type":"bookmark",…`)
	value := strings.Repeat("x", 64<<10)
	for i := range writes {
		save(t, base, fmt.Sprintf(`[{"key":"k%d","value":%q}]`, i, value))
		other.want(`{"type":"put",…`)
	}
	testutil.Eventually(t, func() error {
		if n := gathered(t, reg, "quorate_watches", "orders"); n != 1 {
			return fmt.Errorf("%v watches are open", n)
		}
		return nil
	})
	if n := gathered(t, reg, "quorate_watch_ends_total", "slow"); n != 1 {
		t.Errorf("%v watches have ended as slow", n)
	}

	// The reader runs again. It reads what is left in its socket, and continues from its last position.
	seen, position := 0, ""
	receive := func(line string) {
		var e struct{ Type, Revision, Key string }
		if json.Unmarshal([]byte(line), &e) != nil || e.Type != "put" {
			return // a bookmark, or a line that was cut
		}
		if want := "k" + strconv.Itoa(seen); e.Key != want {
			t.Fatalf("got the change of %s, want %s", e.Key, want)
		}
		seen, position = seen+1, e.Revision
	}
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			break
		}
		receive(line)
	}
	if seen == writes || seen == 0 {
		t.Fatalf("the stopped reader had %d of %d changes in its socket", seen, writes)
	}
	for seen < writes {
		before := seen
		again := openTap(t, base+"/v1.0/watch/orders?from="+position)
		for seen < writes {
			line, err := again.r.ReadString('\n')
			if err != nil {
				break // on a busy machine, this reader may be cut as well
			}
			receive(line)
		}
		if seen == before {
			t.Fatalf("the watch from the last position had nothing after %d of %d changes", seen, writes)
		}
	}
}
