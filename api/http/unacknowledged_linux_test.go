package http_test

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/quorate/quorate/api/http/httpserver"
	"github.com/quorate/quorate/internal/testutil"
)

// All data fits into the send buffer of the kernel, so no write blocks. The watch of a client that reads nothing must
// end nevertheless.
func TestWatch_ReaderOfNothingIsCutThoughNoWriteBlocks(t *testing.T) {
	t.Parallel()
	server, _, reg := watchedWith(t, httpserver.Config{WriteStall: time.Second})
	e := eventsOf(t, server, "", "")
	if err := e.conn.(*net.TCPConn).SetReadBuffer(4 << 10); err != nil {
		t.Fatal(err)
	}
	for i := range 12 {
		save(t, "http://"+server.Addr().String(), fmt.Sprintf(`[{"key":"k","value":"%d%s"}]`, i,
			strings.Repeat("x", 16<<10)))
	}
	testutil.Eventually(t, func() error {
		if n := gathered(t, reg, "quorate_watch_ends_total", "slow"); n != 1 {
			return fmt.Errorf("%v watches have ended as slow", n)
		}
		return nil
	})
}
