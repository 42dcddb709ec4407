package bindings

import (
	"strings"

	"github.com/quorate/quorate/internal/fault"
)

// MetadataDirection limits a binding that has two sides to one of them.
const MetadataDirection = "direction"

// MetadataRoute is the path of the application that events are posted to; by default the
// component's name.
const MetadataRoute = "route"

// Direction is which sides of a binding are wanted. The zero value means that the
// component does not say.
type Direction struct{ Input, Output bool }

// Given reports whether the component says anything.
func (d Direction) Given() bool { return d.Input || d.Output }

// ParseDirection reads "input", "output" or both, separated by a comma.
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
			return Direction{}, fault.New(fault.Invalid, "bindings.ParseDirection", `must be "input", "output" or "input, output"`)
		}
	}
	return d, nil
}
