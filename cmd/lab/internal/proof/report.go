package proof

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"math"
	"slices"
	"strings"
	"time"
)

//go:embed report.html
var reportText string

// WriteHTML writes the report as one self-contained page.
func (r *Result) WriteHTML(w io.Writer) error {
	t, err := template.New("report").Funcs(template.FuncMap{
		"short": func(d time.Duration) string { return d.Round(10 * time.Millisecond).String() },
		"at":    clockTime,
		"join":  strings.Join,
	}).Parse(reportText)
	if err != nil {
		return err
	}
	return t.Execute(w, page{Result: r, Drawing: r.draw()})
}

// WriteJSON writes the result as JSON.
func (r *Result) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

type page struct {
	*Result
	Drawing drawing
}

// drawing is the timeline of the report. Positions and sizes are in units of the picture.
type drawing struct {
	Width, Height  int
	Left, Wide     int
	Lanes          []lane
	Bands          []band // faults
	Marks          []mark // changes of leadership
	Violations     []mark
	Stalls         []band
	Plots          []plot
	Ticks          []mark
	LanesEnd, Base int
}

type lane struct {
	Y    int
	Name string
}

type band struct {
	X, Width float64
	Y        int
	Colour   string
	Text     string
}

type mark struct {
	X    float64
	Text string
}

type plot struct {
	Y, Height int
	Name, Top string
	Lines     []line
}

type line struct{ Colour, Points, Name string }

const (
	left       = 290 // space for names
	wide       = 980
	laneHeight = 12
	plotHeight = 110
)

// draw returns the timeline of the campaign. It has one lane per class of faults, and below them the results of the
// clients per second.
func (r *Result) draw() drawing {
	end := max(r.Took.Seconds(), 1)
	x := func(d time.Duration) float64 { return left + d.Seconds()/end*wide }
	d := drawing{Width: left + wide + 40, Left: left, Wide: wide}
	ids := map[string]int{}
	for _, c := range r.Classes {
		if c.Times > 0 {
			ids[c.ID] = len(d.Lanes)
			d.Lanes = append(d.Lanes, lane{20 + len(d.Lanes)*laneHeight, c.ID + " " + c.Name})
		}
	}
	for _, p := range r.Played {
		k := ids[p.Class]
		d.Bands = append(d.Bands, band{
			X: x(p.Begin), Width: max(x(p.Healthy)-x(p.Begin), 1.5), Y: 20 + k*laneHeight, Colour: colour(k),
			Text: fmt.Sprintf("step %d, %s %s: at %s for %s, whole again %s later. %s", p.Number, p.Class, p.Name,
				clockTime(p.Begin),
				(p.Healed - p.Begin).Round(time.Millisecond), (p.Healthy - p.Healed).Round(time.Millisecond),
				strings.Join(p.Notes, "; ")),
		})
	}
	d.LanesEnd = 20 + len(d.Lanes)*laneHeight
	for _, e := range r.Changes {
		d.Marks = append(d.Marks, mark{x(e.At),
			fmt.Sprintf("%s leads group %d in term %d, seen at %s", e.Leader, e.Group, e.Term, clockTime(e.At))})
	}
	for _, v := range r.Violations {
		d.Violations = append(d.Violations, mark{x(v.At), v.String()})
	}
	for _, s := range r.Stalls {
		d.Stalls = append(d.Stalls, band{X: x(s.At), Width: max(x(s.At+s.Long)-x(s.At), 1),
			Text: "the machine did not run this process for " + s.Long.Round(time.Millisecond).String()})
	}
	d.Base = d.LanesEnd + 30
	r.plots(&d, end)
	d.Height = d.Base + len(d.Plots)*(plotHeight+30) + 20
	for i := range 11 {
		at := time.Duration(float64(i) / 10 * end * float64(time.Second))
		d.Ticks = append(d.Ticks, mark{x(at), clockTime(at)})
	}
	return d
}

// plots adds plots of what the clients measured in each second: finished requests, their durations, and failed
// requests. The time axis ends at end, in seconds.
func (r *Result) plots(d *drawing, end float64) {
	type series struct {
		name, colour string
		of           func(s second) float64
	}
	for _, p := range []struct {
		name, unit string
		series     []series
	}{
		{"requests done in a second", "", []series{
			{"done", "#1b7f4d", func(s second) float64 { return float64(s.Done) }}}},
		{"milliseconds, logarithmic", " ms", []series{
			{"99 of 100", "#c77700", func(s second) float64 { return logarithm(s.Worst) }},
			{"median", "#2458b3", func(s second) float64 { return logarithm(s.Median) }},
		}},
		{"requests not done in a second", "", []series{
			{"refused", "#8a8a8a", func(s second) float64 { return float64(s.Refused) }},
			{"of unknown outcome", "#b3242b", func(s second) float64 { return float64(s.Unknown) }},
		}},
	} {
		top := 1.0
		for _, s := range r.Timeline {
			for _, one := range p.series {
				top = max(top, one.of(s))
			}
		}
		y := d.Base + len(d.Plots)*(plotHeight+30)
		out := plot{Y: y, Height: plotHeight, Name: p.name, Top: fmt.Sprintf("%.0f", top)}
		if p.unit != "" {
			out.Top = fmt.Sprintf("%.0f%s", math.Pow(10, top)-1, p.unit)
		}
		for _, one := range p.series {
			var points strings.Builder
			for i, s := range r.Timeline {
				fmt.Fprintf(&points, "%.1f,%.1f ", left+(float64(i)+0.5)/end*wide,
					float64(y+plotHeight)-one.of(s)/top*plotHeight)
			}
			out.Lines = append(out.Lines, line{one.colour, points.String(), one.name})
		}
		d.Plots = append(d.Plots, out)
	}
}

func logarithm(d time.Duration) float64 { return math.Log10(1 + float64(d)/float64(time.Millisecond)) }

// colour returns the k-th of a sequence of distinct colours.
func colour(k int) string { return fmt.Sprintf("hsl(%d 60%% 45%%)", k*47%360) }

// clockTime formats a time of the campaign in minutes and seconds.
func clockTime(d time.Duration) string {
	return fmt.Sprintf("%d:%04.1f", int(d.Minutes()), math.Mod(d.Seconds(), 60))
}

// Summary returns the result in a few lines, for a terminal.
func (r *Result) Summary() string {
	var b strings.Builder
	faults := 0
	for _, n := range r.Faults {
		faults += n
	}
	fmt.Fprintf(&b, "seed %d, %s, %s: %d faults, %d changes of leadership, %d violations\n", r.Seed, r.Nodes,
		r.Took.Round(time.Second), faults, r.Elections, len(r.Violations))
	for _, c := range slices.SortedFunc(slices.Values(r.Classes),
		func(a, b ClassSummary) int { return byClass(a.ID, b.ID) }) {
		if c.Times > 0 {
			fmt.Fprintf(&b, "%5d  %s %s\n", c.Times, c.ID, c.Name)
		}
	}
	for _, t := range r.Totals {
		fmt.Fprintf(&b, "  %s: %s\n", t.Name, t.Value)
	}
	for _, v := range r.Violations {
		fmt.Fprintf(&b, "VIOLATION %s\n", v)
	}
	return b.String()
}
