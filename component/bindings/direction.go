package bindings

import (
	"strings"

	"github.com/quorate/quorate/internal/fault"
)

// MetadataDirection is the name of the metadata field for the direction of a binding. If a binding has both an input
// and an output, this field can limit it to one of them.
const MetadataDirection = "direction"

// MetadataRoute is the name of the metadata field for the route of an input. The route is the application's path for
// the events. The default is the name of the component.
const MetadataRoute = "route"

// Direction says whether a binding is used as input, output or both. The zero value means that the component does
// not set the direction.
type Direction struct{ Input, Output bool }

// Given reports whether the component sets a direction.
func (d Direction) Given() bool { return d.Input || d.Output }

// ParseDirection parses "input", "output", or both words separated by a comma. It ignores case. An empty text gives the
// zero value. If the text contains any other word, ParseDirection returns fault.Invalid.
func ParseDirection(text string) (Direction, error) {
	var d Direction
	if text == "" {
		return d, nil
	}
	for word := range strings.SplitSeq(text, ",") {
		switch strings.ToLower(strings.TrimSpace(word)) {
		case "input":
			d.Input = true
		case "output":
			d.Output = true
		default:
			return Direction{}, fault.New(fault.Invalid, "bindings.ParseDirection",
				`must be "input", "output" or "input, output"`)
		}
	}
	return d, nil
}
