package http_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quorate/quorate/api/http/httpserver"
	"github.com/quorate/quorate/api/http/servertest"
	"github.com/quorate/quorate/internal/testutil"
)

// events is the client of a watch over a connection of its own.
type events struct {
	conn net.Conn
	r    *bufio.Reader
}

// eventsOf opens a watch over a connection of its own. headers are complete header lines.
func eventsOf(t *testing.T, server *httpserver.Server, query, headers string) *events {
	t.Helper()
	conn := servertest.Send(t, server, "GET /v1.0/watch/orders"+query+" HTTP/1.1\r\nHost: localhost\r\n"+headers+"\r\n")
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close() // otherwise Body.Close waits for the end of the answer
		_ = answer.Body.Close()
	})
	return &events{conn, bufio.NewReader(answer.Body)}
}

// want reads up to a line that contains a text, and returns this line.
func (e *events) want(t *testing.T, text string) string {
	t.Helper()
	for {
		line, err := e.r.ReadString('\n')
		if err != nil {
			t.Fatalf("waiting for %q: %v", text, err)
		}
		if strings.Contains(line, text) {
			return line
		}
	}
}

func TestWatch_IdleWatchesHaveNoGoroutines(t *testing.T) {
	const count = 100
	server, _, _ := watched(t)
	base := "http://" + server.Addr().String()
	var all []*events
	before := runtime.NumGoroutine()
	for range count {
		e := eventsOf(t, server, "", "")
		e.want(t, "bookmark")
		all = append(all, e)
	}
	idle := func() error {
		if n := runtime.NumGoroutine() - before; n > count/4 {
			return fmt.Errorf("%d watches have %d goroutines", count, n)
		}
		return nil
	}
	testutil.Eventually(t, idle)
	for i := range 3 {
		save(t, base, fmt.Sprintf(`[{"key":"k","value":%d}]`, i))
		for _, e := range all {
			e.want(t, fmt.Sprintf(`"key":"k","value":%d}`, i))
		}
	}
	testutil.Eventually(t, idle)
}

// Each watch gets only the changes that match its request, in its format, although watches share encoded parts.
func TestWatch_RequestsDoNotMix(t *testing.T) {
	server, _, _ := watched(t)
	base := "http://" + server.Addr().String()
	all := map[*events]string{}
	for range 3 {
		for query, want := range map[string]string{
			"": "a b ", "?prefix=a": "a ", "?key=b": "b ", "?key=a&key=c": "a c ",
			"?values=false": "a b ", "?prefix=c": "c ",
		} {
			want += "| "
			for _, headers := range []string{"", "Accept: text/event-stream\r\n"} {
				e := eventsOf(t, server, query, headers)
				e.want(t, "bookmark")
				all[e] = fmt.Sprint(want, query == "?values=false", " ", headers != "")
			}
		}
	}
	for i := range 3 {
		save(t, base, fmt.Sprintf(`[{"key":"a","value":%d},{"key":"b","value":%d}]`, i, i))
		save(t, base, fmt.Sprintf(`[{"key":"c","value":%d}]`, i))
	}
	for e, form := range all {
		keys, _, _ := strings.Cut(form, "|")
		if keys == "a b " {
			keys = "a b c "
		}
		for i := range 3 {
			for _, key := range strings.Fields(keys) {
				line := e.want(t, `"put"`)
				data, isEvent := strings.CutPrefix(line, "data: ")
				wantValue := !strings.Contains(form, "true ")
				if isEvent != strings.HasSuffix(form, "true") || !strings.Contains(data, `"key":"`+key+`"`) ||
					strings.Contains(data, fmt.Sprintf(`"value":%d`, i)) != wantValue {
					t.Fatalf("watch %q got %q as change %d of key %s", form, line, i, key)
				}
			}
		}
	}
}

func TestWatch_GoesOnInTheLoopAfterASlowReader(t *testing.T) {
	const writes, size = 40, 64 << 10
	server, _, _ := watched(t)
	base := "http://" + server.Addr().String()
	slow, fast := eventsOf(t, server, "", ""), eventsOf(t, server, "", "")
	_ = slow.conn.(*net.TCPConn).SetReadBuffer(64 << 10) // if this fails, more data fits into the socket
	value := strings.Repeat("x", size)
	for i := range writes {
		save(t, base, fmt.Sprintf(`[{"key":"k%d.","value":%q}]`, i, value))
		fast.want(t, fmt.Sprintf(`"key":"k%d."`, i))
	}
	for i := range writes {
		if line := slow.want(t, `"put"`); !strings.Contains(line, fmt.Sprintf(`"key":"k%d."`, i)) {
			t.Fatalf("got %.60q as change %d", line, i)
		}
	}
	save(t, base, `[{"key":"last","value":1}]`)
	slow.want(t, `"last"`)
}

func TestWatch_ClientThatSendsMoreIsServed(t *testing.T) {
	t.Parallel()
	server, _, _ := watched(t)
	e := eventsOf(t, server, "?bookmark=1s", "")
	if _, err := io.WriteString(e.conn, strings.Repeat("GET / HTTP/1.1\r\n", 1000)); err != nil {
		t.Fatal(err)
	}
	e.want(t, "bookmark")
	e.want(t, "bookmark") // after the loop has read from the connection
}

// Clients that send without end do not delay other watches, and are disconnected.
func TestWatch_ClientThatKeepsSendingIsCut(t *testing.T) {
	t.Parallel()
	server, _, _ := watched(t)
	good := eventsOf(t, server, "", "")
	good.want(t, "bookmark")
	var senders sync.WaitGroup
	for range 8 {
		e := eventsOf(t, server, "", "")
		e.want(t, "bookmark")
		senders.Go(func() {
			junk := make([]byte, 64<<10)
			for {
				if _, err := e.conn.Write(junk); err != nil {
					if errors.Is(err, os.ErrDeadlineExceeded) {
						t.Errorf("a client that keeps sending is not disconnected: %v", err)
					}
					return
				}
			}
		})
	}
	for i := range 3 {
		save(t, "http://"+server.Addr().String(), fmt.Sprintf(`[{"key":"k","value":%d}]`, i))
		good.want(t, fmt.Sprintf(`"key":"k","value":%d}`, i))
	}
	senders.Wait()
}
