#!/bin/sh
# Claude Code gives what happened as JSON on standard input: one line of the log each.
{ tr -d '\n'; echo; } >> HOOK_LOG
