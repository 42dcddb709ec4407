// The tests of the web console in a real browser. A module of its own: nothing of it is linked into quorate. It starts
// nodes with the launcher of quorate.
module github.com/quorate/quorate/cmd/lab/browsertest

go 1.26.6

require (
	github.com/chromedp/cdproto v0.0.0-20250803210736-d308e07a266d
	github.com/chromedp/chromedp v0.14.2
	github.com/quorate/quorate v0.0.0
)

require (
	github.com/chromedp/sysutil v1.1.0 // indirect
	github.com/go-json-experiment/json v0.0.0-20260213210345-44df1a37e875 // indirect
	github.com/gobwas/httphead v0.1.0 // indirect
	github.com/gobwas/pool v0.2.1 // indirect
	github.com/gobwas/ws v1.4.0 // indirect
	github.com/prometheus/procfs v0.22.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
)

replace github.com/quorate/quorate => ../../..
