package command

import (
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorate/quorate/node"
)

// progress shows the progress of a long transfer. On a terminal it updates one line. Otherwise it writes log lines.
type progress struct {
	bytes atomic.Int64
	total string // size of the whole transfer, as text; empty = unknown
	verb  string

	quit chan struct{}
	done sync.WaitGroup
}

// terminalPause is the time between changes of the line on a terminal.
const terminalPause = 100 * time.Millisecond

// Progress shows the progress of a transfer on standard error, until End is called. The caller must write a copy of the
// transferred bytes to the result, which counts them. On a terminal, Progress updates one line. Otherwise it logs a
// line after each interval, or nothing if interval is 0.
//
// The parameter verb follows the number of bytes in the output, for example "saved". The parameter total is the size of
// the whole transfer as text, or "" if the size is unknown.
func (s *Shell) Progress(verb, total string, interval time.Duration) *progress {
	p := &progress{verb: verb, total: total, quit: make(chan struct{})}
	switch {
	case IsTerminal(s.Stderr):
		p.done.Go(func() { p.draw(s.Stderr) })
	case interval > 0:
		p.done.Go(func() { p.log(NewLogger(s.Stderr, node.Log{}), interval) })
	}
	return p
}

// Write adds the length of b to the transferred bytes.
func (p *progress) Write(b []byte) (int, error) {
	p.bytes.Add(int64(len(b)))
	return len(b), nil
}

// text returns the number of transferred bytes, and the total if it is known.
func (p *progress) text() string {
	text := BytesText(p.bytes.Load())
	if p.total != "" {
		text += " of " + p.total
	}
	return text
}

func (p *progress) draw(w io.Writer) {
	p.every(terminalPause, func() { fmt.Fprintf(w, "\r%s %s \033[K", p.text(), p.verb) })
	fmt.Fprint(w, "\r\033[K")
}

func (p *progress) log(log *slog.Logger, interval time.Duration) {
	begun := time.Now()
	p.every(interval, func() {
		log.Info(p.verb, "bytes", p.text(), "since", time.Since(begun).Round(time.Second).String())
	})
}

// every repeats show at the given interval, until end is called.
func (p *progress) every(interval time.Duration, show func()) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			show()
		case <-p.quit:
			return
		}
	}
}

// End stops the output of the progress. On a terminal it clears the line.
func (p *progress) End() {
	close(p.quit)
	p.done.Wait()
}
