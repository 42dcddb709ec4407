package clustercmd

import (
	"context"
	"strings"
	"time"

	"github.com/gdamore/tcell/v2"

	"github.com/quorate/quorate/internal/fault"
)

// live shows the reports of the nodes on the terminal, and updates them, until the user quits or ctx ends.
func (t *top) live(ctx context.Context) error {
	screen, err := tcell.NewScreen()
	if err == nil {
		err = screen.Init()
	}
	if err != nil {
		return &fault.Error{Code: fault.Unavailable, Op: "cli.top", Msg: "the terminal cannot be used", Err: err,
			Hint: "set TERM, for example to xterm, or use --once"}
	}
	defer screen.Fini()
	return t.show(ctx, screen)
}

// show draws the newest look on the screen until the user quits or ctx ends. The user can scroll the text with the
// arrow keys.
func (t *top) show(ctx context.Context, screen tcell.Screen) error {
	ctx, cancel := context.WithCancel(ctx)
	events, quit, looks := make(chan tcell.Event), make(chan struct{}), make(chan look)
	defer close(quit)
	go screen.ChannelEvents(events, quit)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		t.repeat(ctx, looks)
	}()
	defer func() { cancel(); <-ended }()
	text, offset := "Asking the nodes …", 0
	var newest, older look
	render := func() error {
		width, _ := screen.Size()
		var b strings.Builder
		err := newest.write(&b, older, width)
		text = b.String() + "\nq ends, arrows scroll"
		return err
	}
	for {
		draw(screen, text, &offset)
		select {
		case l := <-looks:
			if l.err != nil {
				text = "The node of the data directory does not answer: " + fault.Text(l.err)
				continue
			}
			older, newest = newest, l
			if err := render(); err != nil {
				return err
			}
		case e := <-events:
			switch e := e.(type) {
			case nil: // the screen has ended
				return nil
			case *tcell.EventResize:
				screen.Sync()
				if !newest.at.IsZero() {
					if err := render(); err != nil {
						return err
					}
				}
			case *tcell.EventKey:
				switch {
				case e.Key() == tcell.KeyCtrlC, e.Key() == tcell.KeyEscape, e.Rune() == 'q':
					return nil
				case e.Key() == tcell.KeyDown:
					offset++
				case e.Key() == tcell.KeyUp:
					offset--
				}
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// repeat calls top.ask at intervals until ctx ends. It sends each result to the channel looks.
func (t *top) repeat(ctx context.Context, looks chan<- look) {
	tick := time.NewTicker(t.interval)
	defer tick.Stop()
	for {
		l := t.ask(ctx)
		select {
		case looks <- l:
		case <-ctx.Done():
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// wrapped splits a text into lines of at most width columns, if possible between words.
func wrapped(text string, width int) (lines []string) {
	for line := range strings.SplitSeq(text, "\n") {
		rest := []rune(line)
		for width > 0 && len(rest) > width {
			end := width
			for end > 0 && rest[end] != ' ' {
				end--
			}
			if end == 0 { // a word that is longer
				end = width
			}
			lines = append(lines, string(rest[:end]))
			rest = []rune(strings.TrimLeft(string(rest[end:]), " "))
		}
		lines = append(lines, string(rest))
	}
	return lines
}

// draw shows a text on the screen, from line *offset on. It first limits *offset, so that the user cannot scroll beyond
// the text.
func draw(screen tcell.Screen, text string, offset *int) {
	width, height := screen.Size()
	lines := wrapped(text, width)
	*offset = max(0, min(*offset, len(lines)-height))
	screen.Clear()
	for y, line := range lines[*offset:min(len(lines), *offset+max(height, 0))] {
		style := tcell.StyleDefault
		if line == strings.ToUpper(line) && strings.Contains(line, "  ") { // the header of a table
			style = style.Bold(true)
		}
		x := 0
		for _, r := range line {
			screen.SetContent(x, y, r, nil, style)
			x++
		}
	}
	screen.Show()
}
