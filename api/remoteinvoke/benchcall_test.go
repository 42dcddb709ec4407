package remoteinvoke_test

import (
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"time"
)

// BenchmarkCall measures the processor time and the allocations of one call. The application, the nodes and a very
// cheap client run in this process, so only the differences between the ways are meaningful.
func BenchmarkCall(b *testing.B) {
	value := strings.Repeat("v", 256)
	for _, way := range waysTo(b, value) {
		for verb, body := range map[string]string{"GET": "", "POST": `{"order":7}`} {
			b.Run(way.name+"/"+verb, func(b *testing.B) {
				u, err := url.Parse(way.url)
				if err != nil {
					b.Fatal(err)
				}
				conn, err := net.Dial("tcp", u.Host) //nolint:noctx // loopback
				if err != nil {
					b.Fatal(err)
				}
				defer conn.Close()
				r, err := http.NewRequest(verb, way.url, strings.NewReader(body)) //nolint:noctx // it is only written
				if err != nil {
					b.Fatal(err)
				}
				var text strings.Builder
				if err := r.Write(&text); err != nil {
					b.Fatal(err)
				}
				request, answer := []byte(text.String()), make([]byte, 4<<10)
				ask := func() {
					if _, err := conn.Write(request); err != nil {
						b.Fatal(err)
					}
					for n := 0; !strings.HasSuffix(string(answer[:n]), value); {
						m, err := conn.Read(answer[n:])
						if n += m; err != nil {
							b.Fatalf("%v after %q", err, answer[:n])
						}
					}
				}
				ask()
				b.ReportAllocs()
				before := spent(b)
				for b.Loop() {
					ask()
				}
				b.ReportMetric(float64((spent(b)-before).Microseconds())/float64(b.N), "cpu-us/op")
			})
		}
	}
}

// spent returns the processor time of this process.
func spent(b *testing.B) time.Duration {
	var use syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &use); err != nil {
		b.Fatal(err)
	}
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}
