# serve.sh POSTGRES DATA SOCKETS: run a server until its owner says so on standard input, or is gone
# and with it the other end of the pipe. One that a signal killed is started again, as soon as what
# it left in memory is gone; the first start waits for the server of an owner that was killed, which
# may still end, but not if another version made the files. The server is told to end until it has:
# as it begins it does not listen yet.
exec 3<&0
tries=40
while true; do
    "$1" -D "$2" -k "$3" -c listen_addresses= -c log_checkpoints=off &
    server=$!
    (read _ <&3; touch "$3/over"; while kill -INT $server; do sleep 0.2; done) 2> /dev/null &
    wait $server
    code=$?
    kill $!
    if [ -e "$3/over" ] || [ $code -eq 0 ]; then break; fi
    if [ $code -gt 128 ]; then tries=40; fi
    if tail -n 2 log | grep -q "not compatible"; then break; fi
    if [ $((tries -= 1)) -lt 0 ]; then break; fi
    sleep 0.5
done
rm -rf "$3"
