package settings

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/quorate/quorate/node"
)

// KindSwitch is the kind of a setting that is on or off.
const KindSwitch = "bool"

// value is the text form of one field of a configuration. It is a pflag.Value. Its set
// says in its error what to give instead.
type value struct {
	kind  string
	set   func(string) error
	get   func() string
	list  bool     // set adds to what is there
	words []string // the closed set; nil = open
}

func (v *value) Set(s string) error { return v.set(s) }
func (v *value) String() string {
	if v == nil || v.get == nil { // pflag asks a zero value to find out what a default looks like
		return ""
	}
	return v.get()
}
func (v *value) Type() string { return v.kind }

// text is a string; kind is the word for it in help. An empty one is refused: it is most
// often a variable that was not set, and the default would hide that.
func text[T ~string](kind string, p *T) *value {
	return &value{kind: kind,
		set: func(s string) error {
			if s == "" {
				return errors.New("give a value, or leave the setting out")
			}
			*p = T(s)
			return nil
		},
		get: func() string { return string(*p) },
	}
}

// choice is one word of a closed set.
func choice[T ~string](p *T, words ...T) *value {
	names := make([]string, len(words))
	for i, w := range words {
		names[i] = string(w)
	}
	return &value{kind: "word", words: names,
		set: func(s string) error {
			if !slices.Contains(words, T(s)) {
				return errors.New("give one of " + strings.Join(names, ", "))
			}
			*p = T(s)
			return nil
		},
		get: func() string { return string(*p) },
	}
}

// list is several words: a comma separates them, and each further flag adds to them.
func list(kind string, p *[]string) *value {
	return &value{kind: kind, list: true,
		set: func(s string) error {
			for word := range strings.SplitSeq(s, ",") {
				if word = strings.TrimSpace(word); word == "" {
					return errors.New("an element is empty: remove it, or a comma too many")
				}
				*p = append(*p, word)
			}
			return nil
		},
		get: func() string { return strings.Join(*p, ",") },
	}
}

// hosts is a list of IP addresses, with or without the brackets of a URL.
func hosts(p *[]string) *value {
	v := list("address", p)
	add := v.set
	v.set = func(s string) error { return add(strings.NewReplacer("[", "", "]", "").Replace(s)) }
	return v
}

// number is a whole number of at least low.
func number(kind string, p *int, low int) *value {
	return &value{kind: kind,
		set: func(s string) error {
			n, err := strconv.Atoi(s)
			if err != nil || n < low {
				return fmt.Errorf("give a whole number, %d or more", low)
			}
			*p = n
			return nil
		},
		get: func() string {
			if *p == 0 && low > 0 {
				return "" // not set
			}
			return strconv.Itoa(*p)
		},
	}
}

func port(p *node.Port) *value {
	return &value{kind: "port",
		set: func(s string) error {
			n, err := strconv.ParseUint(s, 10, 16)
			if err != nil {
				return errors.New("give a port from 0 to 65535; 0 picks a free one")
			}
			*p = node.Port{Number: int(n), Given: true}
			return nil
		},
		get: func() string { return strconv.Itoa(p.Number) },
	}
}

// flag is a bool. When is the value of *p that the word true stands for.
func flag(p *bool, when bool) *value {
	return &value{kind: KindSwitch,
		set: func(s string) error {
			b, err := strconv.ParseBool(s)
			if err != nil {
				return errors.New("give true or false")
			}
			*p = b == when
			return nil
		},
		get: func() string { return strconv.FormatBool(*p == when) },
	}
}

// duration is a length of time above zero. A bare number counts units.
func duration(p *time.Duration, unit time.Duration) *value {
	return &value{kind: "duration",
		set: func(s string) error {
			d, err := parseDuration(s, unit)
			if err != nil || d <= 0 {
				return errors.New("give a duration above zero, as 10s, 500ms or 1m30s")
			}
			*p = d
			return nil
		},
		get: func() string { return p.String() },
	}
}

func parseDuration(s string, unit time.Duration) (time.Duration, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return time.ParseDuration(s)
	}
	if n > int64(math.MaxInt64/unit) || n < 0 {
		return 0, strconv.ErrRange
	}
	return time.Duration(n) * unit, nil
}

// size is a number of bytes.
func size(p *int64) *value {
	return &value{kind: "size",
		set: func(s string) error {
			n, err := ParseSize(s)
			if err != nil {
				return err
			}
			*p = n
			return nil
		},
		get: func() string { return FormatSize(*p) },
	}
}

// level is a log level.
func level(p *slog.Level) *value {
	names := map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError}
	return &value{kind: "word", words: []string{"debug", "info", "warn", "error"},
		set: func(s string) error {
			l, ok := names[strings.ToLower(s)]
			if !ok {
				return errors.New("give one of debug, info, warn, error")
			}
			*p = l
			return nil
		},
		get: func() string { return strings.ToLower(p.String()) },
	}
}

// token adds one secret to a list. It is taken whole: a comma may be part of it.
func token(p *[]node.Secret) *value {
	return &value{kind: "secret",
		set: func(s string) error { *p = append(*p, node.Secret(strings.TrimSpace(s))); return nil },
		get: func() string {
			if len(*p) == 0 {
				return ""
			}
			return (*p)[0].String()
		},
	}
}

// secret is one secret; its text never shows it.
func secret(p *node.Secret) *value {
	return &value{kind: "secret",
		set: func(s string) error { *p = node.Secret(s); return nil },
		get: func() string { return p.String() },
	}
}

// unit is a suffix of a size.
type unit struct {
	suffix string
	bytes  int64
}

// units lists the longer suffixes first, so that the right one is taken off.
func units() []unit {
	return []unit{{"Ti", 1 << 40}, {"Gi", 1 << 30}, {"Mi", 1 << 20}, {"Ki", 1 << 10}, {"T", 1e12}, {"G", 1e9}, {"M", 1e6}, {"k", 1e3}, {"K", 1e3}, {"", 1}}
}

// ParseSize reads a number of bytes above zero, as "4Mi", "500k", "4MiB" or "4194304".
func ParseSize(s string) (int64, error) {
	digits := strings.TrimSuffix(strings.TrimSpace(s), "B")
	for _, u := range units() {
		rest, ok := strings.CutSuffix(digits, u.suffix)
		if !ok {
			continue
		}
		if n, err := strconv.ParseInt(rest, 10, 64); err == nil && n > 0 && n <= math.MaxInt64/u.bytes {
			return n * u.bytes, nil
		}
		break
	}
	return 0, errors.New("give a size above zero in bytes, or with a suffix as in 500k, 4Mi, 1Gi")
}

// FormatSize writes n the way ParseSize reads it, exactly.
func FormatSize(n int64) string {
	for _, u := range units() {
		if strings.HasSuffix(u.suffix, "i") && n != 0 && n%u.bytes == 0 {
			return strconv.FormatInt(n/u.bytes, 10) + u.suffix
		}
	}
	return strconv.FormatInt(n, 10)
}
